// Perfetto's trace_processor (WebAssembly, as shipped with its user interface) between stdin and stdout.
// usage: node trace_processor.js FOLDER_WITH_engine_bundle.js
const fs = require('fs'), path = require('path'), vm = require('vm');
const folder = process.argv[2];

class FileRequest { // the bundle loads its .wasm by a synchronous XMLHttpRequest
  open(method, url) { this.file = path.join(folder, path.basename(new URL(url, 'http://x/').pathname)); }
  send() {
    const bytes = fs.readFileSync(this.file);
    this.status = 200;
    this.response = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length);
  }
}

const quiet = () => {};
const context = vm.createContext({
  console: { log: quiet, warn: quiet, info: quiet, debug: quiet, error: (...text) => process.stderr.write(text.join(' ') + '\n') },
  XMLHttpRequest: FileRequest, location: { href: 'http://x/engine_bundle.js' }, performance, TextDecoder, TextEncoder, URL,
  setTimeout, clearTimeout, crypto: globalThis.crypto, Date,
});
vm.runInContext('self = globalThis; importScripts = () => {}; WorkerGlobalScope = {};', context);
vm.runInContext(fs.readFileSync(path.join(folder, 'engine_bundle.js'), 'utf8'), context);

const port = { postMessage: (bytes) => fs.writeSync(1, Buffer.from(bytes)) };
context.self.onmessage({ data: port });
context.fromOutside = (bytes) => port.onmessage({ data: vm.runInContext('(a) => Uint8Array.from(a)', context)(bytes) });
const waiting = [];
process.stdin.on('data', (chunk) => waiting.push(chunk));
const pump = () => {
  if (port.onmessage) while (waiting.length) context.fromOutside(waiting.shift());
  setTimeout(pump, 2);
};
process.stdin.on('end', () => process.exit(0));
pump();

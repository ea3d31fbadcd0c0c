// What CUDA's runtime calls cost the host, without PyTorch. Prints one JSON line a measurement:
//   {"call": ..., "bytes": ... or null, "us": median, "us_min": ..., "us_max": ..., "repeats": ...}
// build and run: nvcc -O2 -o host_cost host_cost.cu && ./host_cost

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include <cuda_runtime.h>

#define CHECK(call)                                                                              \
    do {                                                                                         \
        cudaError_t error = (call);                                                              \
        if (error != cudaSuccess) {                                                              \
            std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(error));                  \
            std::exit(1);                                                                        \
        }                                                                                        \
    } while (0)

__global__ void empty_kernel() {}

struct Argument {
    char bytes[1024];
};
__global__ void kernel_with_1KiB_argument(Argument) {}

static double now_us() {
    using namespace std::chrono;
    return duration<double, std::micro>(steady_clock::now().time_since_epoch()).count();
}

// Time `calls` calls of `call`, `repeats` times over; `after` runs untimed between the repeats.
static void report(const char *name, long long bytes, int repeats, int calls, const std::function<void()> &call,
                   const std::function<void()> &after = [] { CHECK(cudaDeviceSynchronize()); }) {
    std::vector<double> us;
    for (int repeat = -1; repeat < repeats; ++repeat) {  // the first warms up
        double begin = now_us();
        for (int i = 0; i < calls; ++i) call();
        double end = now_us();
        after();
        if (repeat >= 0) us.push_back((end - begin) / calls);
    }
    std::sort(us.begin(), us.end());
    std::printf("{\"call\": \"%s\", \"bytes\": %s, \"us\": %.3f, \"us_min\": %.3f, \"us_max\": %.3f, \"repeats\": %d}\n", name,
                bytes < 0 ? "null" : std::to_string(bytes).c_str(), us[us.size() / 2], us.front(), us.back(), repeats);
    std::fflush(stdout);
}

int main() {
    CHECK(cudaSetDevice(0));
    CHECK(cudaFree(nullptr));
    cudaStream_t stream;
    cudaEvent_t event;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));

    // 500 launches a repeat stay below the launch queue's depth of about 1,000
    report("cudaLaunchKernel", -1, 21, 500, [&] { empty_kernel<<<1, 32, 0, stream>>>(); });
    report("cudaLaunchKernel, 1 KiB argument", -1, 21, 500, [&] { kernel_with_1KiB_argument<<<1, 32, 0, stream>>>(Argument{}); });
    CHECK(cudaGetLastError());
    report("cudaLaunchKernel, queue full", -1, 5, 20000, [&] { empty_kernel<<<1, 32, 0, stream>>>(); });
    report("cudaLaunchKernel + cudaStreamSynchronize", -1, 21, 50, [&] {
        empty_kernel<<<1, 32, 0, stream>>>();
        CHECK(cudaStreamSynchronize(stream));
    });
    report("cudaEventRecord", -1, 21, 500, [&] { CHECK(cudaEventRecord(event, stream)); });
    report("cudaStreamWaitEvent", -1, 21, 500, [&] { CHECK(cudaStreamWaitEvent(stream, event, 0)); });
    report("cudaEventQuery", -1, 21, 500, [&] { CHECK(cudaEventQuery(event)); });
    report("cudaStreamSynchronize, idle", -1, 21, 500, [&] { CHECK(cudaStreamSynchronize(stream)); });
    report("cudaDeviceSynchronize, idle", -1, 21, 500, [&] { CHECK(cudaDeviceSynchronize()); });
    char *device, *pinned;
    CHECK(cudaMalloc(&device, 4096));
    CHECK(cudaMallocHost(&pinned, 4096));
    report("cudaMemcpyAsync H2D, pinned", 8, 21, 500, [&] { CHECK(cudaMemcpyAsync(device, pinned, 8, cudaMemcpyHostToDevice, stream)); });
    report("cudaMemcpyAsync D2H, pinned + cudaStreamSynchronize", 8, 21, 50, [&] {
        CHECK(cudaMemcpyAsync(pinned, device, 8, cudaMemcpyDeviceToHost, stream));
        CHECK(cudaStreamSynchronize(stream));
    });
    report("cudaMemsetAsync", 4096, 21, 500, [&] { CHECK(cudaMemsetAsync(device, 0, 4096, stream)); });

    for (long long bytes : {2LL << 20, 20LL << 20, 64LL << 20, 256LL << 20, 1LL << 30, 4LL << 30, 16LL << 30}) {
        const int repeats = 9;
        std::vector<double> make, release;
        for (int i = -1; i < repeats; ++i) {
            void *block;
            double begin = now_us();
            CHECK(cudaMalloc(&block, bytes));
            double made = now_us();
            CHECK(cudaFree(block));
            double freed = now_us();
            if (i >= 0) make.push_back(made - begin), release.push_back(freed - made);
        }
        for (auto *times : {&make, &release}) {
            std::sort(times->begin(), times->end());
            std::printf("{\"call\": \"%s\", \"bytes\": %lld, \"us\": %.3f, \"us_min\": %.3f, \"us_max\": %.3f, \"repeats\": %d}\n",
                        times == &make ? "cudaMalloc" : "cudaFree", bytes, (*times)[repeats / 2], times->front(), times->back(), repeats);
        }
    }
    for (long long bytes : {1LL << 20, 64LL << 20, 1LL << 30}) {
        void *block;
        report("cudaMallocHost + cudaFreeHost", bytes, 3, 1, [&] {
            CHECK(cudaMallocHost(&block, bytes));
            CHECK(cudaFreeHost(block));
        });
    }
    return 0;
}

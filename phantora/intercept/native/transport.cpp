#include "transport.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <bit>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <vector>

#include "device.h"
#include "python_support.h"
#include "record.h"

namespace phantora::native::transport {
namespace {

constexpr uint8_t kRecordsFrame = 2; // Frame.RECORDS
constexpr size_t kHeaderBytes = 5;
static_assert(std::endian::native == std::endian::little, "records and headers are written as they lie in memory");

std::mutex transport_mutex;
std::atomic<int> socket_fd{-1};
std::atomic<bool> broken{false};

bool send_all(const char* data, size_t size) {
  while (size > 0) {
    const ssize_t sent = ::send(socket_fd, data, size, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) {
      broken = true;
      device::set_recording(false);
      return false;
    }
    data += sent;
    size -= size_t(sent);
  }
  return true;
}

bool send_frame(uint8_t type, std::string_view payload) {
  if (socket_fd < 0 || broken) return !broken;
  char header[kHeaderBytes];
  const uint32_t length = uint32_t(payload.size() + 1);
  std::memcpy(header, &length, sizeof length);
  header[4] = char(type);
  return send_all(header, kHeaderBytes) && send_all(payload.data(), payload.size());
}

bool send_records() {
  if (socket_fd < 0) return !broken; // they stay for drain()
  std::vector<Record> records;
  device::take_records(records);
  if (records.empty()) return !broken;
  return send_frame(kRecordsFrame, {reinterpret_cast<const char*>(records.data()), records.size() * sizeof(Record)});
}

} // namespace

void connect(int fd) {
  WithoutGil blocking;
  std::lock_guard<std::mutex> guard(transport_mutex);
  socket_fd = fd;
  broken = false;
}

bool is_connected() { return socket_fd >= 0; }

bool is_broken() { return broken; }

bool flush() {
  WithoutGil blocking;
  std::lock_guard<std::mutex> guard(transport_mutex);
  return send_records();
}

bool send_after_records(uint8_t type, std::string_view payload) {
  WithoutGil blocking;
  std::lock_guard<std::mutex> guard(transport_mutex);
  return send_records() && send_frame(type, payload);
}

bool send_before_records(uint8_t type, std::string_view payload) {
  WithoutGil blocking;
  std::lock_guard<std::mutex> guard(transport_mutex);
  return send_frame(type, payload);
}

void lock_for_fork() { transport_mutex.lock(); }

void unlock_after_fork() { transport_mutex.unlock(); }

void forget_connection() {
  if (socket_fd < 0) return;
  // The descriptor's number stays taken (Python's socket object will close it), but the engine sees the end of the
  // connection when the rank itself ends.
  const int nothing = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  if (nothing >= 0) {
    ::dup2(nothing, socket_fd);
    ::close(nothing);
  }
  socket_fd = -1;
}

} // namespace phantora::native::transport

// Settings of the caching allocator: what PYTORCH_CUDA_ALLOC_CONF / PYTORCH_ALLOC_CONF can say.
//
// Mirrors c10/core/AllocatorConfig.{h,cpp} and c10/cuda/CUDAAllocatorConfig.{h,cpp} of torch 2.13, including the
// wording of its errors. Sizes are bytes.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cctype>
#include <cstddef>
#include <cstdlib>
#include <limits>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace phantora::memory {

inline constexpr size_t kMiB = size_t{1} << 20;
inline constexpr size_t kMinBlockSize = 512;         // every size is rounded up to a multiple of this
inline constexpr size_t kSmallSize = kMiB;           // largest request served from the small pool
inline constexpr size_t kSmallBuffer = 2 * kMiB;     // segment of the small pool
inline constexpr size_t kMinLargeAlloc = 10 * kMiB;  // smaller ones share a segment of large_segment_size
inline constexpr size_t kRoundLarge = 2 * kMiB;      // segments above that are multiples of this
inline constexpr size_t kUnlimited = std::numeric_limits<size_t>::max();

struct Config {
  size_t large_segment_size = 20 * kMiB;
  size_t max_split_size = kUnlimited;              // free blocks of at least this size are never split
  size_t max_non_split_rounding_size = 20 * kMiB;  // how much larger an unsplit oversize block may be than the request
  // Divisions of the interval [1 MiB << i, 2 MiB << i); 0 or 1: plain rounding to 512 bytes.
  std::array<size_t, 16> roundup_power2_divisions{};
  double garbage_collection_threshold = 0.0;  // fraction of the allowed maximum; 0: off
  bool expandable_segments = false;
  double per_process_memory_fraction = 1.0;
  bool throw_on_cudamalloc_oom = false;
  bool graph_capture_record_stream_reuse = false;  // accepted; blocks are reused after the capture as with False
  std::string backend = "native";
  std::string settings;  // the text that was parsed last, as torch.cuda.memory reports it

  size_t divisions_for(size_t size) const {
    const int log_size = std::bit_width(size) - 1;
    return roundup_power2_divisions[static_cast<size_t>(std::clamp(log_size - 20, 0, 15))];
  }
};

// Raised for a setting that torch would refuse. `what()` is torch's wording.
struct ConfigError : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

namespace detail {

class ConfigParser {
 public:
  ConfigParser(std::string_view text, Config& config) : config_(config) {
    std::string word;
    for (const char c : text) {
      if (c == ',' || c == ':' || c == '[' || c == ']') {
        flush(word);
        tokens_.emplace_back(1, c);
      } else if (!std::isspace(static_cast<unsigned char>(c))) {
        word += c;
      }
    }
    flush(word);
  }

  void run() {
    while (at_ < tokens_.size()) {
      const std::string key = next();
      expect(":");
      parse_value(key);
      if (at_ < tokens_.size()) expect(",");
    }
  }

 private:
  void flush(std::string& word) {
    if (!word.empty()) tokens_.push_back(std::move(word));
    word.clear();
  }
  const std::string& peek() const {
    if (at_ >= tokens_.size()) throw ConfigError("Index out of bounds in ConfigTokenizer");
    return tokens_[at_];
  }
  const std::string& next() {
    const std::string& token = peek();
    ++at_;
    return token;
  }
  void expect(const char* token) {
    const std::string& got = next();
    if (got != token)
      throw ConfigError(std::string("Expected '") + token + "' in allocator config but got '" + got + "'");
  }
  size_t integer() {
    const std::string& token = next();
    try {
      return std::stoull(token);
    } catch (const std::logic_error&) {
      throw ConfigError("Expected a number in allocator config but got '" + token + "'");
    }
  }
  double real() {
    const std::string& token = next();
    try {
      return std::stod(token);
    } catch (const std::logic_error&) {
      throw ConfigError("Expected a number in allocator config but got '" + token + "'");
    }
  }
  bool boolean() {
    const size_t index = at_;
    const std::string& token = next();
    if (token == "True") return true;
    if (token == "False") return false;
    throw ConfigError("Expected 'True' or 'False' at index " + std::to_string(index) + " in ConfigTokenizer but got '" +
                      token + "'");
  }
  static void check(bool ok, const std::string& message) {
    if (!ok) throw ConfigError(message);
  }

  void parse_value(const std::string& key) {
    if (key == "max_split_size_mb") {
      config_.max_split_size = megabytes(key);
    } else if (key == "max_non_split_rounding_mb") {
      config_.max_non_split_rounding_size = megabytes(key);
    } else if (key == "large_segment_size_mb") {
      const size_t value = integer();
      check(value > kMinLargeAlloc / kMiB, "CachingAllocator option large_segment_size_mb must be > 10 MB");
      config_.large_segment_size = std::min(value, kUnlimited / kMiB) * kMiB;
    } else if (key == "garbage_collection_threshold") {
      const double value = real();
      check(value > 0 && value < 1, "garbage_collect_threshold is invalid, set it in (0.0, 1.0)");
      config_.garbage_collection_threshold = value;
    } else if (key == "roundup_power2_divisions") {
      parse_divisions();
    } else if (key == "expandable_segments") {
      config_.expandable_segments = boolean();
    } else if (key == "per_process_memory_fraction") {
      const double value = real();
      check(value >= 0 && value <= 1, "per_process_memory_fraction is invalid, set it in [0.0, 1.0]");
      config_.per_process_memory_fraction = value;
    } else if (key == "throw_on_cudamalloc_oom") {
      config_.throw_on_cudamalloc_oom = boolean();
    } else if (key == "graph_capture_record_stream_reuse") {
      config_.graph_capture_record_stream_reuse = boolean();
    } else if (key == "backend") {
      config_.backend = next();
      check(config_.backend == "native" || config_.backend == "cudaMallocAsync",
            "Unknown allocator backend, options are native and cudaMallocAsync");
    } else {
      skip_value_without_effect(key);
    }
  }

  // Options of the host allocator, of locking, of address reservation: nothing to emulate.
  void skip_value_without_effect(const std::string& key) {
    static constexpr std::array<std::string_view, 12> known{"release_lock_on_cudamalloc",
                                                            "release_lock_on_hipmalloc",
                                                            "pinned_use_cuda_host_register",
                                                            "pinned_use_hip_host_register",
                                                            "pinned_num_register_threads",
                                                            "pinned_reserve_segment_size_mb",
                                                            "pinned_use_background_threads",
                                                            "pinned_max_round_threshold_mb",
                                                            "pinned_max_cached_size_mb",
                                                            "pinned_free_catch_all",
                                                            "expandable_segments_reserve",
                                                            "expandable_segments_reserve_by_class"};
    check(std::find(known.begin(), known.end(), key) != known.end(),
          "Unrecognized key '" + key + "' in CUDA allocator config.");
    if (next() == "[")
      while (next() != "]") continue;
  }

  size_t megabytes(const std::string& key) {
    const size_t smallest = config_.large_segment_size / kMiB;
    const size_t value = integer();
    check(value >= smallest, "CachingAllocator option " + key + " too small, must be >= " + std::to_string(smallest));
    return std::min(value, kUnlimited / kMiB) * kMiB;
  }

  // 'N' for every size, or '[256:1,512:2,>:8]': the boundary (MB, a power of two) names an interval; sizes below the
  // first boundary take its divisions, '>' fills the rest.
  void parse_divisions() {
    auto& table = config_.roundup_power2_divisions;
    if (peek() != "[") {
      const size_t value = integer();
      check(std::has_single_bit(value), "For roundups, the divisions has to be power of 2 ");
      table.fill(value);
      return;
    }
    next();
    size_t last = 0;
    for (bool first = true; peek() != "]"; first = false) {
      const std::string boundary = next();
      expect(":");
      const size_t value = integer();
      check(value == 0 || std::has_single_bit(value),
            "For roundups, the divisions has to be power of 2 or 0 to disable roundup ");
      if (boundary == ">") {
        std::fill(table.begin() + static_cast<std::ptrdiff_t>(std::min(last + 1, table.size())), table.end(), value);
      } else {
        last = interval(boundary);
        if (first) std::fill_n(table.begin(), last, value);
        table[last] = value;
      }
      if (peek() != "]") expect(",");
    }
    next();
  }

  size_t interval(const std::string& boundary) const {
    size_t value = 0;
    try {
      value = std::stoull(boundary);
    } catch (const std::logic_error&) {
    }
    check(std::has_single_bit(value), "For roundups, the intervals have to be power of 2 ");
    return std::min<size_t>(static_cast<size_t>(std::bit_width(value)) - 1,
                            config_.roundup_power2_divisions.size() - 1);
  }

  Config& config_;
  std::vector<std::string> tokens_;
  size_t at_ = 0;
};

}  // namespace detail

// Applies `text` ("key:value,key:[a:b,c:d]") to `config`. As in torch, max_split_size_mb, roundup_power2_divisions and
// garbage_collection_threshold return to their defaults first, the others keep their value. Throws ConfigError, leaving
// `config` as it was.
inline void apply_settings(std::string_view text, Config& config) {
  Config changed = config;
  changed.max_split_size = kUnlimited;
  changed.roundup_power2_divisions.fill(0);
  changed.garbage_collection_threshold = 0;
  changed.settings = std::string(text);
  detail::ConfigParser(text, changed).run();
  config = changed;
}

inline Config parse_config(std::string_view text) {
  Config config;
  apply_settings(text, config);
  return config;
}

// The variable that torch 2.13 reads: PYTORCH_CUDA_ALLOC_CONF if set, else PYTORCH_ALLOC_CONF, never both.
inline Config config_from_environment() {
  for (const char* name : {"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"}) {
    if (const char* text = std::getenv(name)) return parse_config(text);
  }
  return {};
}

}  // namespace phantora::memory

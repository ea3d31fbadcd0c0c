// The numbers of torch.cuda.memory_stats (c10/core/CachingDeviceAllocator.h: DeviceStats).
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace phantora::memory {

struct Stat {
  int64_t current = 0, peak = 0, allocated = 0, freed = 0;

  void increase(size_t amount) {
    current += static_cast<int64_t>(amount);
    peak = std::max(peak, current);
    allocated += static_cast<int64_t>(amount);
  }
  void decrease(size_t amount) {
    current -= static_cast<int64_t>(amount);
    freed += static_cast<int64_t>(amount);
  }
  void change(int64_t amount) {
    amount < 0 ? decrease(static_cast<size_t>(-amount)) : increase(static_cast<size_t>(amount));
  }
  void reset_peak() { peak = current; }
  void reset_accumulated() { allocated = freed = 0; }
};

// One Stat for everything and one for each size class.
struct PoolStat {
  Stat all, small_pool, large_pool;

  void increase(size_t amount, bool is_small) {
    all.increase(amount);
    (is_small ? small_pool : large_pool).increase(amount);
  }
  void decrease(size_t amount, bool is_small) {
    all.decrease(amount);
    (is_small ? small_pool : large_pool).decrease(amount);
  }
  void change(int64_t amount, bool is_small) {
    all.change(amount);
    (is_small ? small_pool : large_pool).change(amount);
  }
  template <typename F>
  void each(F f) {
    f(all), f(small_pool), f(large_pool);
  }
};

using PoolId = std::pair<uint64_t, uint64_t>;  // c10::MempoolId_t; {0, 0} is the default pool

struct DeviceStats {
  PoolStat allocation, segment, active, inactive_split;                                           // counts
  PoolStat allocated_bytes, reserved_bytes, active_bytes, inactive_split_bytes, requested_bytes;  // sums
  std::map<PoolId, PoolStat> reserved_bytes_by_private_pools;
  Stat oversize_allocations, oversize_segments;
  int64_t num_alloc_retries = 0, num_ooms = 0, num_sync_all_streams = 0;
  int64_t num_device_alloc = 0, num_device_free = 0, num_oom_rejections = 0;
  int64_t max_split_size = -1;  // torch stores SIZE_MAX, its default, in an int64

  template <typename F>
  void each_stat(F f) {
    for (PoolStat* stat : {&allocation, &segment, &active, &inactive_split, &allocated_bytes, &reserved_bytes,
                           &active_bytes, &inactive_split_bytes, &requested_bytes})
      stat->each(f);
    for (auto& [id, stat] : reserved_bytes_by_private_pools) stat.each(f);
    f(oversize_allocations), f(oversize_segments);
  }
  void reset_peak() {
    each_stat([](Stat& stat) { stat.reset_peak(); });
  }
  void reset_accumulated() {
    each_stat([](Stat& stat) { stat.reset_accumulated(); });
    num_alloc_retries = num_ooms = num_sync_all_streams = 0;
    num_device_alloc = num_device_free = num_oom_rejections = 0;
  }

  // As torch.cuda.memory_stats names them ("allocated_bytes.all.current", ...), sorted by name.
  std::vector<std::pair<std::string, int64_t>> flatten() const {
    std::map<std::string, int64_t> flat;
    const std::array<std::pair<const char*, const PoolStat*>, 9> by_pool{
        {{"allocation", &allocation},
         {"segment", &segment},
         {"active", &active},
         {"inactive_split", &inactive_split},
         {"allocated_bytes", &allocated_bytes},
         {"reserved_bytes", &reserved_bytes},
         {"active_bytes", &active_bytes},
         {"inactive_split_bytes", &inactive_split_bytes},
         {"requested_bytes", &requested_bytes}}};
    for (const auto& [name, stat] : by_pool) add(flat, name, *stat);
    for (const auto& [id, stat] : reserved_bytes_by_private_pools)
      add(flat, "reserved_bytes_by_private_pools." + std::to_string(id.first) + "_" + std::to_string(id.second), stat);
    add(flat, "oversize_allocations", oversize_allocations);
    add(flat, "oversize_segments", oversize_segments);
    flat["num_alloc_retries"] = num_alloc_retries;
    flat["num_ooms"] = num_ooms;
    flat["num_sync_all_streams"] = num_sync_all_streams;
    flat["num_device_alloc"] = num_device_alloc;
    flat["num_device_free"] = num_device_free;
    flat["num_oom_rejections"] = num_oom_rejections;
    flat["max_split_size"] = max_split_size;
    return {flat.begin(), flat.end()};
  }

 private:
  static void add(std::map<std::string, int64_t>& flat, const std::string& name, const Stat& stat) {
    flat[name + ".current"] = stat.current;
    flat[name + ".peak"] = stat.peak;
    flat[name + ".allocated"] = stat.allocated;
    flat[name + ".freed"] = stat.freed;
  }
  static void add(std::map<std::string, int64_t>& flat, const std::string& name, const PoolStat& stat) {
    add(flat, name + ".all", stat.all);
    add(flat, name + ".small_pool", stat.small_pool);
    add(flat, name + ".large_pool", stat.large_pool);
  }
};

}  // namespace phantora::memory

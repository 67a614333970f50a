// A storage -> its number: found by its address while it is alive, entered when it is first met.
// Ends are reported by torch's allocator (allocator_listener.h), or found by looking. All with the mutex.

namespace {

constexpr size_t kPolledPerOp = 64;  // storages without an allocator that reports, looked at after each op

inline void* data_of(c10::StorageImpl* memory) { return memory->_mutable_data_ptr_no_checks().get(); }

inline Live& Recorder::storage_of(c10::StorageImpl* memory, bool external, int64_t bytes) {
  auto found = live.find(memory);
  if (found != live.end()) {
    if (found->second.weak.use_count() > 0) {
      if (found->second.data != data_of(memory)) watch_end(memory, found->second);  // resized
      return found->second;
    }
    died(found->second);  // whoever freed it did not say so
    live.erase(found);
  }
  auto number = static_cast<int32_t>(storages.size());
  storages.push_back({bytes < 0 ? static_cast<int64_t>(memory->nbytes()) : bytes, memory->device()});
  WeakStorage weak(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(memory));
  auto& entry = live.emplace(memory, Live{std::move(weak), nullptr, number, external, false, false}).first->second;
  watch_end(memory, entry);
  return entry;
}

// The allocator says when its memory is freed; all other memory has to be looked at.
inline void Recorder::watch_end(c10::StorageImpl* memory, Live& entry) {
  entry.data = data_of(memory);
  bool reported = entry.data && memory->device().is_cpu() &&
      memory->_mutable_data_ptr_no_checks().get_deleter() == c10::GetDefaultCPUAllocator()->raw_deleter();
  if (!reported) {
    if (std::find(polled.begin(), polled.end(), memory) == polled.end()) polled.push_back(memory);
    return;
  }
  if (entry.external) enter_in_table(entry.data, memory->nbytes(), entered);
  auto [found, is_new] = by_data.emplace(entry.data, memory);
  if (!is_new && found->second != memory) {
    auto older = live.find(found->second);
    if (older != live.end() && older->second.weak.use_count() == 0) {
      died(older->second);
      live.erase(older);
    }
    found->second = memory;
  }
}

inline void Recorder::died(const Live& entry) {
  if (!entry.silent) event(Row::Died, entry.number);
}

inline void Recorder::event(Row::Kind kind, int64_t first, int64_t second) {
  Row row{};
  row.kind = kind, row.start = first, row.end = second;
  rows.push_back(row);
}

inline void Recorder::count(int64_t bytes) {
  allocated += bytes;
  peak = std::max(peak, allocated);
}

// Memory was freed; true if it was that of a known storage.
inline bool Recorder::freed(void* data) {
  auto found = by_data.find(data);
  if (found == by_data.end()) return false;
  auto entry = live.find(found->second);
  if (entry != live.end() && entry->second.weak.use_count() == 0) {
    died(entry->second);
    live.erase(entry);
  }
  by_data.erase(found);
  return true;
}

inline void Recorder::poll(size_t most) {
  for (size_t count = std::min(most, polled.size()); count > 0 && !polled.empty(); --count) {
    if (poll_at >= polled.size()) poll_at = 0;
    auto entry = live.find(polled[poll_at]);
    if (entry == live.end() || entry->second.weak.use_count() == 0) {
      if (entry != live.end()) died(entry->second), live.erase(entry);
      polled[poll_at] = polled.back();
      polled.pop_back();
    } else {
      ++poll_at;
    }
  }
}

inline void Recorder::poll_all() {
  poll(polled.size());
  for (auto entry = live.begin(); entry != live.end();) {
    if (entry->second.weak.use_count() == 0) {
      died(entry->second);
      entry = live.erase(entry);
    } else {
      ++entry;
    }
  }
}

inline void Recorder::note_size(c10::StorageImpl* memory) {
  auto entry = live.find(memory);
  if (entry == live.end() || entry->second.weak.use_count() == 0) return;
  event(Row::Resized, entry->second.number, static_cast<int64_t>(memory->nbytes()));
  if (entry->second.data != data_of(memory)) watch_end(memory, entry->second);
}

}  // namespace

// torch's allocator says that memory was allocated or freed -> the bytes of a recording, and the ends of its storages.
// First the table by which torch's CPU allocator knows what to report, then the listener that it reports to.

namespace {

// torch's CPU allocator reports that memory was freed only if it was allocated while somebody listened, else it prints a
// warning at every thousandth time. So memory from before is entered into its table when it is first met, and its count is
// kept away from a thousand. The members are private; naming them in a template argument is allowed.
template <auto Mutex, auto Sizes, auto Allocated, auto Count>
struct Opened {
  friend auto reporter_members() { return std::make_tuple(Mutex, Sizes, Allocated, Count); }
};
auto reporter_members();
template struct Opened<&c10::ProfiledCPUMemoryReporter::mutex_, &c10::ProfiledCPUMemoryReporter::size_table_,
                       &c10::ProfiledCPUMemoryReporter::allocated_, &c10::ProfiledCPUMemoryReporter::log_cnt_>;

void enter_in_table(void* data, size_t bytes, std::vector<void*>& entered) {
  auto [mutex, sizes, allocated, count] = reporter_members();
  auto& reporter = c10::profiledCPUMemoryReporter();
  std::lock_guard<std::mutex> lock(reporter.*mutex);
  if ((reporter.*sizes).emplace(data, bytes).second) reporter.*allocated += bytes, entered.push_back(data);
}

void take_from_table(const std::vector<void*>& entered) {
  auto [mutex, sizes, allocated, count] = reporter_members();
  auto& reporter = c10::profiledCPUMemoryReporter();
  std::lock_guard<std::mutex> lock(reporter.*mutex);
  for (void* data : entered) {
    auto found = (reporter.*sizes).find(data);
    if (found != (reporter.*sizes).end()) reporter.*allocated -= found->second, (reporter.*sizes).erase(found);
  }
}

void keep_quiet() { c10::profiledCPUMemoryReporter().*std::get<3>(reporter_members()) = 1; }

inline void note_allocation(Local& me) {
  if (me.recorded >= 0 && me.recorded == me.depth - 1) me.frames[me.recorded].allocated = true;
}

// torch asks the innermost PROFILER_STATE of a thread whether it wants to hear of allocations. torch.profiler puts itself
// into the same place and takes what it finds there for its own kind: hence the base class, switched off.
struct Listener : torch::profiler::impl::ProfilerStateBase {
  int slot;
  uint64_t generation;
  Listener* outer;
  bool over = false;  // its recording is off in this thread, but one that began later lay upon it

  Listener(int slot, uint64_t generation, Listener* outer)
      : ProfilerStateBase(torch::profiler::impl::ProfilerConfig(torch::profiler::impl::ProfilerState::Disabled)),
        slot(slot), generation(generation), outer(outer) {}
  torch::profiler::impl::ActiveProfilerType profilerType() override { return torch::profiler::impl::ActiveProfilerType::NONE; }
  bool memoryProfilingEnabled() const override {  // asked at every allocation, and before that warning could be printed
    keep_quiet();
    return true;
  }

  void reportMemoryUsage(void* data, int64_t bytes, size_t total, size_t reserved, c10::Device device) override {
    if (running[slot].load() == generation) {
      Inside here(slot);
      Recorder* recorder = slots[slot].load();
      if (recorder && recorder->generation == generation) {
        Lock lock(*recorder);
        bool ours = looking_away || locals[slot].busy;  // what we allocate ourselves does not count
        if (bytes < 0 && recorder->freed(data)) ours = false;
        if (!ours) recorder->count(bytes);
        if (!ours && bytes > 0) note_allocation(locals[slot]);
      }
    }
    if (outer) outer->reportMemoryUsage(data, bytes, total, reserved, device);
  }

  static c10::DebugInfoBase* top() { return c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE); }
};

}  // namespace

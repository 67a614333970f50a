// A thread -> one whose ops and allocations are recorded: torch's callbacks and our listener are put on, and off again.
// A profiler of torch's takes the listener's place for a while.

namespace {

// torch's callbacks carry no data, so there is a pair of them for each recording that may run at the same time. torch
// hands them on to the threads of the autograd engine by itself.
// torch swallows what they throw, and goes on: the recorder says so.
template <int K, typename Function>
void with_recorder(const at::RecordFunction& fn, uint64_t generation, const Function& function) {
  Inside here(K);
  Recorder* recorder = slots[K].load();
  if (!recorder || recorder->generation != generation) return;
  try {
    function(*recorder);
  } catch (const std::exception& error) {
    recorder->failed(fn, error.what());
  }
}

template <int K>
std::unique_ptr<at::ObserverContext> enter(const at::RecordFunction& fn) {
  uint64_t generation = running[K].load();
  if (!is_hidden(locals[K], generation, fn.scope())) {
    with_recorder<K>(fn, generation, [&](Recorder& recorder) { recorder.enter(fn); });
  }
  return nullptr;
}

template <int K>
void leave(const at::RecordFunction& fn, at::ObserverContext*) {
  uint64_t generation = running[K].load();
  Frame* frame = frame_of_call(locals[K], fn, generation);
  if (!frame || frame->kind == Frame::Transparent) return;
  with_recorder<K>(fn, generation, [&](Recorder& recorder) { recorder.leave(fn, *frame); });
}

template <int... K>
at::RecordFunctionCallback callback(int slot, std::integer_sequence<int, K...>) {
  static constexpr at::RecordFunctionCallback::StartCallback enters[] = {enter<K>...};
  static constexpr at::RecordFunctionCallback::EndCallback leaves[] = {leave<K>...};
  return at::RecordFunctionCallback(enters[slot], leaves[slot]);
}

bool is_on(at::CallbackHandle handle) {
  for (const auto& entry : at::get_record_function_tls_().sorted_tls_callbacks_) {
    if (entry.handle_ == handle) return true;
  }
  return false;
}

thread_local std::vector<std::shared_ptr<c10::DebugInfoBase>> put_aside;  // listeners, while a profiler runs

void listen(Recorder* recorder, Local& me) {
  auto* top = Listener::top();
  auto* outer = dynamic_cast<Listener*>(top);
  me.blind = (top && !outer) || !put_aside.empty();
  if (me.blind) {
    ++recorder->aside, recorder->deaf = true;
  } else {
    auto listener = std::make_shared<Listener>(recorder->slot, recorder->generation, outer);
    c10::ThreadLocalDebugInfo::_push(c10::DebugInfoKind::PROFILER_STATE, listener);
  }
}

bool is_listener_of(const Recorder* recorder) {
  auto* top = dynamic_cast<Listener*>(Listener::top());
  return top && top->slot == recorder->slot && top->generation == recorder->generation;
}

void stop_listening(const Recorder* recorder) {
  auto* top = dynamic_cast<Listener*>(Listener::top());
  for (auto* each = top; each; each = each->outer) {
    if (each->slot == recorder->slot && each->generation == recorder->generation) each->over = true;
  }
  for (; top && top->over; top = dynamic_cast<Listener*>(Listener::top())) {
    c10::ThreadLocalDebugInfo::_pop(c10::DebugInfoKind::PROFILER_STATE);
  }
}

void forget_frames(Local& me) {
  for (Frame& frame : me.frames) {
    frame.relaid.clear();
    frame.inputs.clear();
  }
  me.depth = 0;
}

void attach(Recorder* recorder, Cell* cell) {
  Local& me = recorder->local();
  forget_frames(me);
  me.attached = recorder->generation, me.cell = cell, me.paused = 0, me.recorded = -1, me.busy = false;
  listen(recorder, me);
  auto made = callback(recorder->slot, std::make_integer_sequence<int, kSlots>());
  made.needsInputs(true).needsOutputs(true).scopes({at::RecordScope::FUNCTION, at::RecordScope::USER_SCOPE});
  me.handle = at::addThreadLocalCallback(made);
}

void detach(Recorder* recorder) {
  Local& me = recorder->local();
  if (me.attached != recorder->generation) return;
  if (is_on(me.handle)) at::removeCallback(me.handle);
  stop_listening(recorder);
  if (me.blind) --recorder->aside, me.blind = false;
}

// In a process that was just forked: it has no other threads, and what they held and where they were stays so for ever.
PyObject* after_fork(PyObject*, PyObject*) {
  for (int slot = 0; slot < kSlots; ++slot) {
    inside[slot].store(0);
    if (Recorder* recorder = slots[slot].load()) new (&recorder->mutex) std::mutex;
  }
  return none();
}

PyObject* step_aside(PyObject*, PyObject*) {  // a profiler is about to take our place in this thread
  for (auto* top = Listener::top(); dynamic_cast<Listener*>(top); top = Listener::top()) {
    put_aside.push_back(c10::ThreadLocalDebugInfo::_pop(c10::DebugInfoKind::PROFILER_STATE));
    auto* listener = static_cast<Listener*>(top);
    if (Recorder* r = slots[listener->slot].load(); r && r->generation == listener->generation) ++r->aside, r->deaf = true;
  }
  return none();
}

PyObject* step_back(PyObject*, PyObject*) {
  if (Listener::top()) return none();  // somebody else's
  while (!put_aside.empty()) {
    auto listener = std::static_pointer_cast<Listener>(put_aside.back());
    put_aside.pop_back();
    Recorder* r = slots[listener->slot].load();
    if (!r || r->generation != listener->generation) continue;  // it ended meanwhile
    --r->aside;
    listener->outer = dynamic_cast<Listener*>(Listener::top());
    c10::ThreadLocalDebugInfo::_push(c10::DebugInfoKind::PROFILER_STATE, listener);
  }
  return none();
}

}  // namespace

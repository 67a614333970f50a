// A call of an operator begins and ends -> a row, if it is recorded at all: its arguments and results, its times, and
// where it runs (module call, line of the user's, node of backward).

namespace {

constexpr auto kFake = c10::impl::TorchDispatchModeKey::FAKE;

inline bool is_stale(Local& me, uint64_t generation) {
  if (me.attached) return me.attached != generation;
  if (me.seen != generation) me.seen = generation, me.depth = 0, me.recorded = -1;
  return false;
}

// The kinds of the tensors that a call takes, and whether one requires a gradient.
inline void look_at(const IValue& value, DispatchKeySet& keys, bool& needs, bool keyword_only) {
  each_tensor(value, [&](const at::Tensor& tensor) {
    keys = keys | tensor.key_set();
    if (!keyword_only || !value.isTensor()) needs = needs || tensor.requires_grad();
  });
}

// Autograd makes two more nodes just after a write to a view: CopySlices for the whole, and a new one for the view.
inline void note_views(Frame& frame, c10::ArrayRef<const IValue> inputs) {
  for (int64_t target : frame.plan->targets) {
    each_tensor(inputs.at(target), [&](const at::Tensor& tensor) { frame.writes_view |= tensor.is_view(); });
  }
}

// So that an op inside of it can tell whether it has written already.
inline void note_version(Frame& frame, c10::ArrayRef<const IValue> inputs) {
  for (int64_t target : frame.plan->targets) {
    if (!inputs.at(target).isTensor() || inputs.at(target).toTensor().is_inference()) continue;
    frame.written = inputs.at(target).toTensor().unsafeGetTensorImpl();
    frame.version = frame.written->version_counter().current_version();
  }
}

inline bool has_written(const Frame& frame) {
  return frame.written && frame.written->version_counter().current_version() != frame.version;
}

// Most calls are made inside of a recorded op and are no part of the recording. A thread knows that of itself.
inline bool is_hidden(Local& me, uint64_t generation, at::RecordScope scope) {
  if (!generation || looking_away || me.busy || is_stale(me, generation) || me.paused) return true;
  if (scope == at::RecordScope::USER_SCOPE) return false;
  auto excluded = c10::impl::tls_local_dispatch_key_set().excluded_;
  if (excluded.has(DispatchKey::Python)) return true;  // hidden from dispatch modes, so from us
  return me.recorded >= 0 && (!me.frames[me.recorded].autograd || excluded.has_any(kAutograd));
}

// The frame of a call that ends, or null: what was opened in it and has no end is over as well.
inline Frame* frame_of_call(Local& me, const at::RecordFunction& fn, uint64_t generation) {
  if (!generation || is_stale(me, generation)) return nullptr;
  int depth = me.depth;
  while (depth > 0 && me.frames[depth - 1].fn != &fn) --depth;
  if (depth == 0) return nullptr;
  me.depth = depth - 1;
  return &me.frames[me.depth];
}

inline void Recorder::enter(const at::RecordFunction& fn) {
  Local& me = local();
  if (fn.scope() == at::RecordScope::USER_SCOPE) return enter_step(fn, me);
  auto tls = c10::impl::tls_local_dispatch_key_set();
  Operator* op = operator_of(fn);
  if (!op || op->marks) return;
  auto inputs = fn.inputs();
  DispatchKeySet keys;
  bool needs = false, grad = at::GradMode::is_enabled();
  for (size_t i = 0; i < inputs.size(); ++i) look_at(inputs[i], keys, needs, i >= op->positional);
  auto effective = (keys | tls.included_) - tls.excluded_;
  // torch.func hands ops on without calling them anew, and what computes the shapes of fake tensors is no op.
  const char* reason = effective.has_any(kTransforms) ? "a transform of torch.func ran"
      : tls.included_.has(DispatchKey::Python) && c10::impl::TorchDispatchModeTLS::get_mode(kFake) ? "fake tensors ran"
                                                                                                   : nullptr;
  if (reason) {
    Gil gil;
    return call(me, take_over, Ref(Py_BuildValue("(s)", reason)));
  }
  Frame& frame = push(fn, me);
  bool is_composite = effective.has_any(kAutograd) && composite(op, keys);
  if (is_composite) frame.callers = callers_with(frame.callers, op);
  if (is_composite || effective.has_any(kPython) || autocast_takes(op, effective)) return;
  frame.kind = Frame::Recorded;
  frame.autograd = op->has_autograd && effective.has_any(kAutograd);
  frame.below = std::exchange(me.recorded, me.depth - 1);
  frame.uncaught = std::uncaught_exceptions();
  Row& row = frame.row;
  row = Row{};
  row.callers = frame.callers;
  row.op = op, row.needs = grad && needs, row.grad = grad;
  note_place(me, frame, grad);
  row.given = static_cast<uint8_t>(op->positional);
  while (row.given > 0 && is_standard(inputs[row.given - 1], op->arguments[row.given - 1].standard)) --row.given;
  for (size_t i = op->positional; i < inputs.size(); ++i) {
    if (!is_standard(inputs[i], op->arguments[i].standard)) row.present |= 1ull << (i - op->positional);
  }
  Lock lock(*this);
  row.plan = frame.plan = plan_of(me, op, lock);
  if (frame.plan->number < 0) return;  // no part of the program
  aside ? poll_all() : poll(kPolledPerOp);
  if (frame.below >= 0) has_run(me.frames[frame.below], inputs, lock);
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (is_there(row, i)) encode(inputs[i], frame, true, lock);
  }
  if (row.needs && frame.plan->writes) note_views(frame, inputs);
  if (frame.autograd && frame.plan->writes) note_version(frame, inputs);
  lock.unlock();
  if (op->changes_layout && !inputs.empty() && inputs[0].isTensor()) frame.relaid.push_back(inputs[0].toTensor());
  for (size_t i = op->positional; i < inputs.size(); ++i) {  // out=
    if (op->arguments[i].written) each_tensor(inputs[i], [&](const at::Tensor& t) { frame.relaid.push_back(t); });
  }
  if (guard) protect(me, frame, inputs);
  if (frame.plan->wants || before) frame.inputs.assign(inputs.begin(), inputs.end());
  if (before) tell_before(me, frame);
  row.start = now();
}

inline void Recorder::leave(const at::RecordFunction& fn, Frame& frame) {
  Local& me = local();
  if (frame.kind == Frame::Step) return leave_step(me, frame);
  me.recorded = frame.below;
  if (!frame.plan || frame.plan->number < 0) return;
  Row& row = frame.row;
  if (frame.row_at < 0) {
    row.end = now();
    if (!row.in_backward || row.grad) row.next_nr = at::sequence_number::peek() - 2 * frame.writes_view;
  }
  if (row.needs && frame.writes_view) row.needs = 2;
  bool raised = std::uncaught_exceptions() > frame.uncaught;
  Lock lock(*this);
  relay(frame, lock);
  if (raised && frame.row_at < 0) {
    failures.push_back(row);
    failed_in = frame.innermost, failed_at = frame.innermost_instruction;
  } else {
    if (raised) for (int32_t number : frame.made) frame.tokens.push_back(number * 8 + kTensor);
    for (const IValue& value : fn.outputs()) encode(value, frame, false, lock);
    ++ops;
    if (told) note_number(at::sequence_number::peek() - 2 * frame.writes_view - 1, row.grad);
    if (frame.plan->wants && !raised) {
      lock.unlock();
      if (int why = reasons(me, frame, fn.outputs())) tell(me, frame, why, fn.outputs());
      lock.lock();
    }
    row.tokens = tokens.size(), row.values = values.size();
    row.token_count = static_cast<uint32_t>(frame.tokens.size());
    tokens.insert(tokens.end(), frame.tokens.begin(), frame.tokens.end());
    for (IValue& value : frame.values) values.push_back(std::move(value));
    if (frame.row_at >= first_row) {
      rows[frame.row_at - first_row] = row;
    } else {
      rows.push_back(row);
    }
  }
  lock.unlock();
  if (after) tell_after(me, frame, raised, fn.outputs());
  frame.relaid.clear();
  frame.inputs.clear();
}

inline Frame& Recorder::push(const at::RecordFunction& fn, Local& me) {
  if (me.depth == static_cast<int>(me.frames.size())) me.frames.emplace_back();
  Frame& frame = me.frames[me.depth++];
  frame.callers = me.depth > 1 ? me.frames[me.depth - 2].callers : 0;
  frame.fn = &fn;
  frame.kind = Frame::Transparent;
  frame.plan = nullptr;
  frame.writes_view = false;
  frame.allocated = false;
  frame.written = nullptr;
  frame.row_at = -1;
  frame.made.clear();
  frame.tokens.clear();
  frame.values.clear();
  frame.relaid.clear();
  frame.inputs.clear();
  return frame;
}

// What computes the tangent of an op (forward-mode differentiation) and the hooks on what it saves for backward run inside of
// it, most of them after its kernel: it has allocated, or written, or made a tensor that they take. Then its row comes first,
// though the rest of it is only known when the op ends. An exception in a hook, as that by which a checkpoint stops
// recomputing, is none of the op's.
inline void Recorder::has_run(Frame& outer, c10::ArrayRef<const IValue> inputs, Lock& lock) {
  // What a hook on an argument allocates, before the kernel, is no sign; with dual tensors there is hardly a hook as well.
  bool began = outer.allocated && torch::autograd::ForwardADLevel::try_get_by_idx(0);
  if (outer.row_at < 0 && (began || has_written(outer))) take_place(outer);
  for (const IValue& value : inputs) {
    each_tensor(value, [&](const at::Tensor& tensor) {
      auto* impl = tensor.unsafeGetTensorImpl();
      if (!is_plain(impl) || impl->is_wrapped_number() || find(impl)) return;
      if (live.count(impl->unsafe_storage().unsafeGetStorageImpl())) return;
      outer.made.push_back(number_of(tensor, false, lock));
      if (outer.row_at < 0) take_place(outer);
    });
  }
}

inline void Recorder::take_place(Frame& frame) {
  Row& row = frame.row;
  row.end = now();
  if (!row.in_backward || row.grad) row.next_nr = at::sequence_number::peek();
  frame.row_at = first_row + static_cast<int64_t>(rows.size());
  event(Row::Pending, 0);
}

inline void Recorder::relay(Frame& frame, Lock& lock) {
  for (const auto& tensor : frame.relaid) {
    auto* impl = tensor.unsafeGetTensorImpl();
    if (frame.row.op->changes_layout) {
      forget(tensor);
      continue;
    }
    auto entry = known.find(impl);  // not `find`, which would forget it
    if (entry == known.end() || entry->second.layout < 0 || has_sizes(entry->second.layout, impl)) continue;
    int32_t old = entry->second.number;
    forget(tensor);
    int32_t number = number_of(tensor, false, lock);
    event(Row::Reshaped, old, number);
  }
}

// The step of an optimizer: an exception that leaves it must not leave its call open.
inline void Recorder::enter_step(const at::RecordFunction& fn, Local& me) {
  if (std::strncmp(fn.name(), "Optimizer.step#", 15) != 0) return;
  Frame& frame = push(fn, me);
  frame.kind = Frame::Step;
  Cell* here = cell_of(me);
  frame.row.call = static_cast<int32_t>(here->call), frame.row.code = here->code;
  frame.row.instruction = here->instruction;
}

inline void Recorder::leave_step(Local& me, Frame& frame) {
  Cell* here = cell_of(me);
  if (here->call == frame.row.call && here->code == frame.row.code) return;
  Gil gil;
  PyObject* code = reinterpret_cast<PyObject*>(frame.row.code);
  here->call = frame.row.call;
  Ref old(here->line);
  here->line = code ? Py_BuildValue("(Oi)", code, frame.row.instruction) : Py_NewRef(Py_None);
  here->code = frame.row.code, here->instruction = frame.row.instruction;
}

inline Cell* Recorder::cell_of(Local& me) { return me.attached && me.cell ? me.cell : cell; }

// -- where it runs --

inline void Recorder::note_place(Local& me, Frame& frame, bool grad) {
  Row& row = frame.row;
  auto node = torch::autograd::get_current_node();
  if (node) row.in_backward = true, row.backward_nr = node->sequence_nr();
  Cell* here = cell_of(me);
  row.call = static_cast<int32_t>(here->call);
  frame.innermost = nullptr;
  if (node && !grad) return;
  row.code = here->code, row.instruction = here->instruction;
  bool line = row.code, whole = node && grad;
  for (auto* f = top_frame(); f && !(line && !whole && frame.innermost); f = f->previous) {
    if (_PyFrame_IsIncomplete(f)) continue;
    PyCodeObject* code = code_of(f);
    if (!frame.innermost) frame.innermost = code, frame.innermost_instruction = instruction_of(f);
    int kind = kind_of(me, code);
    if (whole && kind & kRecomputes) row.grad = 2, whole = false;
    if (kind & kEnds) line = true;
    if (!line && !(kind & kSkip)) row.code = code, row.instruction = instruction_of(f), line = true;
  }
}

inline int Recorder::kind_of(Local& me, PyCodeObject* code) {
  if (me.codes_of != known_codes) me.codes.fill({}), me.codes_of = known_codes;
  auto& cached = me.codes[(reinterpret_cast<uintptr_t>(code) >> 5) % me.codes.size()];
  if (cached.first == code) return cached.second;
  {
    Lock lock(*this);
    auto found = codes.find(code);
    if (found != codes.end()) return cached = {code, found->second}, found->second;
  }
  Gil gil;
  int kind = keep_code(code);
  return cached = {code, kind}, kind;
}

// With the GIL: from now on the code stays, and so its address is its own.
inline int Recorder::keep_code(PyCodeObject* code) {
  {
    Lock lock(*this);
    auto found = codes.find(code);
    if (found != codes.end()) return found->second;
  }
  Ref kind(PyObject_CallOneArg(classify, reinterpret_cast<PyObject*>(code)));
  if (!kind) note_error();
  int number = kind ? static_cast<int>(PyLong_AsLong(kind)) : kSkip;
  Lock lock(*this);
  if (codes.emplace(code, number).second) Py_INCREF(code);
  return number;
}

}  // namespace

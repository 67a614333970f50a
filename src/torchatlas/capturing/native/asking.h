// What Python is asked (the Plan of an operator) and told: before memory from outside is written, and of the ops that a
// listener wants to hear of -> calls of the functions that the recorder was given. What they raise is kept as `error`.

namespace {

// Why a listener is told of an op; op_listening.py has the same.
constexpr int kAlways = 1, kNotFinite = 2, kNoGradients = 4, kSharedWrite = 8, kOutsideSteps = 16;

inline void Recorder::note_error() {  // with the GIL: the first one is kept, for Core.error
  if (PyErr_ExceptionMatches(PyExc_KeyboardInterrupt)) PyErr_SetInterrupt();  // it is the program's
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  Py_XDECREF(type);
  Py_XDECREF(trace);
  if (!error) error = Ref(value); else Py_XDECREF(value);
}

// A callback of this call has thrown: the call is not recorded.
inline void Recorder::failed(const at::RecordFunction& fn, const char* what) {
  Local& me = local();
  if (me.depth > 0 && me.frames[me.depth - 1].fn == &fn) me.frames[me.depth - 1].plan = nullptr;
  Gil gil;
  std::string first(what, std::strcspn(what, "\n"));  // torch adds a stack
  PyErr_SetString(PyExc_RuntimeError, first.c_str());
  note_error();
}

inline std::vector<int64_t> numbers_in(PyObject* tuple) {
  std::vector<int64_t> numbers;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); ++i) numbers.push_back(PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, i)));
  return numbers;
}

inline Plan* Recorder::plan_of(Local& me, Operator* op, Lock& lock) {
  auto found = plans.find(op);
  if (found != plans.end()) return found->second.get();
  lock.unlock();
  auto plan = described(me, op);
  lock.lock();
  return plans.emplace(op, std::move(plan)).first->second.get();
}

inline std::unique_ptr<Plan> Recorder::described(Local& me, Operator* op) {
  Gil gil;
  bool was_busy = std::exchange(me.busy, true);
  auto plan = std::make_unique<Plan>();
  Ref answer(PyObject_CallFunction(describe, "ss", op->name.c_str(), op->overload.c_str()));
  PyObject *slots, *others, *keywords, *targets, *hidden, *generators;
  int readable, sliced, has_keywords;
  plan->number = -1;
  if (answer && PyArg_ParseTuple(answer, "LpppOOOOOOLLi", &plan->number, &readable, &sliced, &has_keywords, &slots,
                                &others, &keywords, &targets, &hidden, &generators, &plan->hidden_flag,
                                &plan->result, &plan->wants)) {
    plan->readable = readable, plan->sliced = sliced, plan->has_keywords = has_keywords;
    plan->slots = numbers_in(slots), plan->others = numbers_in(others), plan->keywords = numbers_in(keywords);
    plan->targets = numbers_in(targets), plan->hidden = numbers_in(hidden);
    plan->generators = numbers_in(generators);
    plan->writes = !plan->targets.empty();
  } else {
    note_error();
  }
  for (size_t i = op->names.size(); i < op->arguments.size(); ++i) {
    op->names.push_back(PyUnicode_InternFromString(op->arguments[i].schema->name().c_str()));
  }
  me.busy = was_busy;
  return plan;
}

// Before an op writes to memory from outside for the first time.
inline void Recorder::protect(Local& me, const Frame& frame, c10::ArrayRef<const IValue> inputs) {
  const Plan& plan = *frame.plan;
  c10::SmallVector<at::Tensor, 4> written;
  {
    Lock lock(*this);
    auto look = [&](const at::Tensor& tensor) {
      auto* impl = tensor.unsafeGetTensorImpl();
      if (!is_plain(impl)) return written.push_back(tensor);
      auto entry = live.find(impl->unsafe_storage().unsafeGetStorageImpl());
      if (entry == live.end() || (entry->second.external && !entry->second.guarded)) {
        if (entry != live.end()) entry->second.guarded = true;
        written.push_back(tensor);
      }
    };
    for (int64_t target : plan.targets) each_tensor(inputs[target], look);
    if (!plan.hidden.empty() && inputs[plan.hidden_flag].isBool() && inputs[plan.hidden_flag].toBool()) {
      for (int64_t target : plan.hidden) each_tensor(inputs[target], look);
    }
  }
  for (int64_t position : plan.generators) {
    if (inputs[position].isNone()) continue;
    Gil gil;
    Ref generator(THPGenerator_Wrap(inputs[position].toGenerator()));
    call(me, guard, Ref(PyTuple_Pack(1, generator.object)));
  }
  if (written.empty()) return;
  Gil gil;
  Ref list(PyList_New(0));
  for (const auto& tensor : written) PyList_Append(list, Ref(THPVariable_Wrap(tensor)));
  call(me, guard, Ref(PyTuple_Pack(1, list.object)));
}

inline void Recorder::call(Local& me, PyObject* function, const Ref& arguments) {
  bool was_busy = std::exchange(me.busy, true);
  Ref result(PyObject_CallObject(function, arguments));
  me.busy = was_busy;
  if (!result) note_error();
}

// -- a listener --

// Infinities and NaN are the numbers whose exponent is all ones.
template <typename Bits>
bool all_finite(const void* data, size_t count, Bits exponent) {
  constexpr size_t kBlock = 256;  // a fixed length lets the compiler use vector instructions
  auto* bits = static_cast<const Bits*>(data);
  size_t i = 0;
  for (; i + kBlock <= count; i += kBlock) {
    Bits odd = 0;
    for (size_t j = 0; j < kBlock; ++j) odd |= static_cast<Bits>((bits[i + j] & exponent) == exponent);
    if (odd) return false;
  }
  for (; i < count; ++i) {
    if ((bits[i] & exponent) == exponent) return false;
  }
  return true;
}

inline bool are_finite(const void* data, size_t count, at::ScalarType type) {
  switch (type) {
    case at::kFloat: return all_finite<uint32_t>(data, count, 0x7f800000u);
    case at::kDouble: return all_finite<uint64_t>(data, count, 0x7ff0000000000000ull);
    case at::kHalf: return all_finite<uint16_t>(data, count, 0x7c00u);
    case at::kBFloat16: return all_finite<uint16_t>(data, count, 0x7f80u);
    case at::kComplexFloat: return all_finite<uint32_t>(data, 2 * count, 0x7f800000u);
    case at::kComplexDouble: return all_finite<uint64_t>(data, 2 * count, 0x7ff0000000000000ull);
    default: return false;
  }
}

// False also if it cannot be told here: the listener looks again.
inline bool is_finite(const at::Tensor& tensor) {
  auto* impl = tensor.unsafeGetTensorImpl();
  auto count = static_cast<size_t>(impl->numel());
  if (!count || !(tensor.is_floating_point() || tensor.is_complex())) return true;
  if (!is_plain(impl) || !tensor.device().is_cpu() || !impl->data()) return false;
  if (tensor.is_non_overlapping_and_dense()) return are_finite(impl->data(), count, tensor.scalar_type());
  if (impl->stride(impl->dim() - 1) != 1) return false;
  auto rows = count / impl->size(impl->dim() - 1);  // dense in its last dimension: chunks of a larger one
  for (size_t row = 0; row < rows; ++row) {
    int64_t offset = 0;
    size_t rest = row;
    for (int64_t dim = impl->dim() - 2; dim >= 0; --dim) {
      offset += static_cast<int64_t>(rest % impl->size(dim)) * impl->stride(dim);
      rest /= impl->size(dim);
    }
    auto* data = static_cast<const char*>(impl->data()) + offset * impl->itemsize();
    if (!are_finite(data, impl->size(impl->dim() - 1), tensor.scalar_type())) return false;
  }
  return true;
}

inline void Recorder::note_number(int64_t number, bool grad) {  // with the mutex
  for (auto* firsts : {&first_ops[0], &first_ops[1]}) {
    if ((grad || firsts == first_ops) && (firsts->empty() || number > firsts->back().first)) {
      firsts->emplace_back(number, static_cast<int64_t>(ops));
    }
  }
}

// False if one tensor alone has the memory. A storage that numpy shares cannot be resized.
inline bool is_shared(const at::Tensor& tensor) {
  auto* impl = tensor.unsafeGetTensorImpl();
  return !is_plain(impl) || impl->unsafe_storage().use_count() > 1 || !impl->unsafe_storage().resizable();
}

inline int Recorder::reasons(Local& me, const Frame& frame, const std::vector<IValue>& outputs) {
  int wants = frame.plan->wants, why = wants & kAlways;
  if (wants & kNotFinite) {
    bool finite = true;
    for (const IValue& value : outputs) each_tensor(value, [&](const at::Tensor& t) { finite = finite && is_finite(t); });
    if (!finite) why |= kNotFinite;
  }
  if (wants & kNoGradients && !frame.row.grad && !frame.row.in_backward) {
    auto number = static_cast<int64_t>(at::sequence_number::peek());
    if (std::exchange(told_at, number) != number) why |= kNoGradients;
  }
  if (wants & kSharedWrite) {
    bool shared = false;
    for (int64_t target : frame.plan->targets) {
      each_tensor(frame.inputs[target], [&](const at::Tensor& t) { shared = shared || is_shared(t); });
    }
    if (shared) why |= kSharedWrite;
  }
  if (wants & kOutsideSteps && !cell_of(me)->code) why |= kOutsideSteps;
  return why;
}

inline void Recorder::tell(Local& me, const Frame& frame, int why, const std::vector<IValue>& outputs) {
  Gil gil;
  auto [args, kwargs] = call_of(frame);
  Ref out(result_of(frame, outputs));
  call(me, told, Ref(Py_BuildValue("(LiOOO)", frame.plan->number, why, args.object, kwargs.object, out.object)));
}

// Whoever keeps values is told of every op, twice; the second time also if it raised.
inline void Recorder::tell_before(Local& me, const Frame& frame) {
  Gil gil;
  auto [args, kwargs] = call_of(frame);
  call(me, before, Ref(Py_BuildValue("(LOO)", frame.plan->number, args.object, kwargs.object)));
}

inline void Recorder::tell_after(Local& me, const Frame& frame, bool raised, const std::vector<IValue>& outputs) {
  Gil gil;
  auto [args, kwargs] = call_of(frame);
  Ref out(raised ? Py_NewRef(Py_None) : result_of(frame, outputs));
  PyObject* flag = raised ? Py_True : Py_False;
  call(me, after, Ref(Py_BuildValue("(LOOOO)", frame.plan->number, args.object, kwargs.object, flag, out.object)));
}

inline std::pair<Ref, Ref> Recorder::call_of(const Frame& frame) {
  const Row& row = frame.row;
  Ref args(PyTuple_New(row.given)), kwargs(PyDict_New());
  for (size_t i = 0; i < frame.inputs.size(); ++i) {
    if (!is_there(row, i)) continue;
    PyObject* item = to_python(frame.inputs[i], row.op->arguments[i].as);
    if (i < row.op->positional) {
      PyTuple_SET_ITEM(args.object, i, item);
    } else {
      PyDict_SetItem(kwargs, row.op->names[i], Ref(item));
    }
  }
  return {std::move(args), std::move(kwargs)};
}

// torch makes a Parameter of what `detach` returns, unless it has a Python object by then: hand out another tensor.
inline PyObject* Recorder::result_of(const Frame& frame, const std::vector<IValue>& outputs) {
  if (outputs.empty()) return Py_NewRef(Py_None);
  if (auto* impl = outputs[0].isTensor() ? outputs[0].toTensor().unsafeGetTensorImpl() : nullptr;
      impl && frame.row.op->detaches && is_plain(impl)) {
    return THPVariable_Wrap(at::Tensor(impl->shallow_copy_and_detach(impl->version_counter(), true)));
  }
  if (outputs.size() == 1) return to_python(outputs[0], As::Plain);
  PyObject* out = PyTuple_New(static_cast<Py_ssize_t>(outputs.size()));
  for (size_t i = 0; i < outputs.size(); ++i) PyTuple_SET_ITEM(out, i, to_python(outputs[i], As::Plain));
  return out;
}

}  // namespace

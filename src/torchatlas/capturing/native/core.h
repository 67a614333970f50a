// A Recorder -> the Python type Core: begin and end, threads, what was recorded, what a tensor's number is.
// NativeRecorder and NativeNumbers of recorder.py are what uses it.

namespace {

struct Core {
  PyObject_HEAD
  Recorder* recorder;
};

Recorder& of(PyObject* self) { return *reinterpret_cast<Core*>(self)->recorder; }

std::array<Ref*, 15> references(Recorder& r) {
  return {&r.describe, &r.classify, &r.odd, &r.watcher, &r.structure, &r.opaque, &r.omitted, &r.place,
          &r.events, &r.take_over, &r.guard, &r.told, &r.before, &r.after, &r.error};
}

PyObject* core_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"describe", "classify", "odd", "watcher", "structure", "opaque", "omitted",
                                "place", "events", "take_over", "guard", "told", "before", "after", nullptr};
  PyObject* given[14];
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOOOOOOOOOOOO", const_cast<char**>(names), &given[0], &given[1],
                                   &given[2], &given[3], &given[4], &given[5], &given[6], &given[7], &given[8], &given[9],
                                   &given[10], &given[11], &given[12], &given[13])) {
    return nullptr;
  }
  auto* self = reinterpret_cast<Core*>(type->tp_alloc(type, 0));
  self->recorder = new Recorder();
  auto all = references(*self->recorder);
  for (int i = 0; i < 14; ++i) {
    if (given[i] != Py_None) *all[i] = Ref(Py_NewRef(given[i]));
  }
  return reinterpret_cast<PyObject*>(self);
}

int core_traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  for (Ref* ref : references(of(self))) Py_VISIT(ref->object);
  return 0;
}

int core_clear(PyObject* self) {
  for (Ref* ref : references(of(self))) Py_CLEAR(ref->object);
  return 0;
}

void forget_all(Recorder& r, bool codes_too) {
  std::vector<TensorRow> tensors;
  std::vector<PyCodeObject*> codes;
  std::vector<PyObject*> noted;
  ska::flat_hash_map<c10::TensorImpl*, Known> known;
  {
    Lock lock(r);
    noted.swap(r.noted), r.marks.clear(), r.marked = 0;
    r.rows.clear(), r.tokens.clear(), r.values.clear(), r.storages.clear(), r.live.clear();
    known.swap(r.known), r.lone.clear();
    r.by_data.clear(), r.polled.clear(), r.failures.clear();
    tensors.swap(r.tensors);
    r.tensors_drained = r.storages_drained = r.ops = 0, r.first_row = 0;
    r.first_ops[0].clear(), r.first_ops[1].clear(), r.told_at = -1;
    r.allocated = r.peak = 0;
    r.failed_in = nullptr;
    if (codes_too) {
      for (auto& entry : r.codes) codes.push_back(entry.first);
      r.codes.clear();
    }
  }
  r.error = Ref();
  for (auto& row : tensors) Py_XDECREF(row.odd);
  for (auto* code : codes) Py_DECREF(code);
  for (auto* event : noted) Py_DECREF(event);
}

bool is_running(const Recorder& r) { return r.slot >= 0 && slots[r.slot].load() == &r; }  // the slot may be another's now

void wait_until_left(int slot) {  // by all threads that are in a callback
  if (inside[slot].load() == 0) return;
  Py_BEGIN_ALLOW_THREADS
  while (inside[slot].load() > 0) std::this_thread::yield();
  Py_END_ALLOW_THREADS
}

void end_recording(Recorder& r) {
  if (!is_running(r)) return;
  detach(&r);
  running[r.slot].store(0), slots[r.slot].store(nullptr);
  wait_until_left(r.slot);
}

void core_dealloc(PyObject* self) {
  PyObject_GC_UnTrack(self);
  Recorder& r = of(self);
  PyTypeObject* type = Py_TYPE(self);
  if (!r.abandoned) {
    end_recording(r);
    forget_all(r, true);
    for (auto* items : {&r.shapes, &r.strides}) {
      for (PyObject* item : *items) Py_XDECREF(item);
    }
    delete &r;
  }
  type->tp_free(self);
  Py_DECREF(type);
}

PyObject* core_start(PyObject* self, PyObject* cell) {
  Recorder& r = of(self);
  static std::mutex mutex;
  std::lock_guard<std::mutex> lock(mutex);
  for (int slot = 0; slot < kSlots; ++slot) {
    if (slots[slot].load()) continue;
    r.slot = slot, r.order = r.generation = r.known_codes = ++generations, r.cell = reinterpret_cast<Cell*>(cell);
    r.aside = 0, r.deaf = false;
    slots[slot].store(&r), running[slot].store(r.generation);
    attach(&r, r.cell);
    Py_RETURN_TRUE;
  }
  Py_RETURN_FALSE;
}

void end_rows(Recorder& r) {
  Lock lock(r);
  r.poll_all();
  take_from_table(std::exchange(r.entered, {}));
}

PyObject* core_stop(PyObject* self, PyObject*) {
  end_recording(of(self));
  end_rows(of(self));
  return none();
}

// Ends, and another one, (core, cell), begins at the same moment in its place: the callbacks and the listener of this
// thread stay where they are. False, and nothing has happened, unless all is as it was when this one began.
PyObject* core_hand_over(PyObject* self, PyObject* args) {
  PyObject *core, *cell;
  if (!PyArg_ParseTuple(args, "OO", &core, &cell)) return nullptr;
  Recorder &r = of(self), &next = of(core);
  Local& me = r.local();
  bool whole = is_running(r) && me.attached == r.generation && is_on(me.handle) && is_listener_of(&r) && !me.paused &&
      !me.busy && me.recorded < 0 && !r.aside && !is_running(next);
  if (!whole) Py_RETURN_FALSE;
  next.slot = r.slot, next.generation = r.generation, next.order = r.order, next.cell = reinterpret_cast<Cell*>(cell);
  next.known_codes = ++generations, next.aside = 0, next.deaf = false;
  me.cell = next.cell, forget_frames(me);
  slots[r.slot].store(&next);
  wait_until_left(r.slot);
  r.generation = ++generations;  // of no thread: what is still asked of this one must not end the other
  end_rows(r);
  Py_RETURN_TRUE;
}

// In a process that was just forked. Other threads may have been at work on what is in it, and on the allocator's table:
// nothing is taken apart, only callbacks and listener are taken off.
PyObject* core_abandon(PyObject* self, PyObject*) {
  Recorder& r = of(self);
  r.abandoned = true;
  if (!is_running(r)) return none();
  detach(&r);
  slots[r.slot].store(nullptr);
  return none();
}

PyObject* core_attach(PyObject* self, PyObject* cell) {
  Recorder& r = of(self);
  if (is_running(r)) attach(&r, reinterpret_cast<Cell*>(cell));
  return none();
}

PyObject* core_detach(PyObject* self, PyObject*) {
  Recorder& r = of(self);
  if (r.slot >= 0) detach(&r);
  return none();
}

// 0: not on in this thread, 1: on, 2: on, and one that began later is on as well
PyObject* core_place(PyObject* self, PyObject*) {
  Recorder& r = of(self);
  if (r.slot < 0) return PyLong_FromLong(0);
  Local& me = r.local();
  if (me.attached != r.generation || !is_on(me.handle)) return PyLong_FromLong(0);
  for (int slot = 0; slot < kSlots; ++slot) {
    Recorder* other = slots[slot].load();
    Local& there = locals[slot];
    if (other && there.attached == other->generation && other->order > r.order && is_on(there.handle)) {
      return PyLong_FromLong(2);
    }
  }
  return PyLong_FromLong(1);
}

PyObject* core_succeed(PyObject* self, PyObject* other) {  // it stands where the other one stood: see `place`
  of(self).order = of(other).order;
  return none();
}

PyObject* core_pause(PyObject* self, PyObject* change) {
  Recorder& r = of(self);
  if (is_running(r)) r.local().paused += static_cast<int>(PyLong_AsLong(change));
  return none();
}

// What a function returns that is called here, in which nothing is recorded: whatever it raises, that ends with it.
PyObject* core_unrecorded(PyObject* self, PyObject* args) {
  PyObject *function, *argument;
  if (!PyArg_ParseTuple(args, "OO", &function, &argument)) return nullptr;
  Recorder& r = of(self);
  bool running = is_running(r);
  if (running) ++r.local().paused;
  PyObject* result = PyObject_CallOneArg(function, argument);
  if (running) --r.local().paused;
  return result;
}

PyObject* core_drain(PyObject* self, PyObject* list) { return of(self).drain(list) ? none() : nullptr; }

PyObject* core_note(PyObject* self, PyObject* event) {
  Recorder& r = of(self);
  Lock lock(r);
  r.poll(r.polled.size());  // what died before comes before, as it does before an op
  r.noted.push_back(Py_NewRef(event));
  r.event(Row::Noted, static_cast<int64_t>(r.noted.size()) - 1);
  return none();
}

PyObject* core_mark(PyObject* self, PyObject*) {
  Recorder& r = of(self);
  Lock lock(r);
  r.event(Row::Mark, 0);
  return PyLong_FromLongLong(r.marked++);
}

PyObject* core_summary(PyObject* self, PyObject*) { return of(self).summary(); }

PyObject* core_tensors(PyObject* self, PyObject* list) { return of(self).drain_tensors(list), none(); }

PyObject* core_storages(PyObject* self, PyObject* list) { return of(self).drain_storages(list), none(); }

PyObject* core_marks(PyObject* self, PyObject*) {  // positions of all marks that were drained
  return list_of(of(self).marks, [](int64_t item) { return PyLong_FromLongLong(item); });
}

at::TensorBase tensor_at(PyObject* address) {
  auto* impl = static_cast<c10::TensorImpl*>(PyLong_AsVoidPtr(address));
  return at::TensorBase(Impl::reclaim_copy(impl));
}

PyObject* core_number(PyObject* self, PyObject* args) {
  PyObject* address;
  int external;
  if (!PyArg_ParseTuple(args, "Op", &address, &external)) return nullptr;
  Recorder& r = of(self);
  auto tensor = tensor_at(address);
  int32_t number;
  {
    Lock lock(r);
    number = r.number_of(tensor, external, lock);
  }
  return PyLong_FromLong(number);
}

PyObject* core_gone(PyObject* self, PyObject* address) {  // a tensor that Python watches ends
  Recorder& r = of(self);
  Lock lock(r);
  r.gone(static_cast<c10::TensorImpl*>(PyLong_AsVoidPtr(address)), is_running(r));
  return none();
}

PyObject* core_known(PyObject* self, PyObject* address) {  // (number, storage's number) of a tensor that was seen, or None
  Recorder& r = of(self);
  auto tensor = tensor_at(address);
  int32_t number, storage;
  {
    Lock lock(r);  // nothing of Python's is made meanwhile: its collector may free memory, which the listener notes
    Known* entry = r.find(tensor.unsafeGetTensorImpl());
    number = entry ? entry->number : -1, storage = entry ? entry->storage : -1;
  }
  return number < 0 ? none() : Py_BuildValue("(ii)", number, storage);
}

PyObject* core_memory(PyObject* self, PyObject* address) {  // (number, came from outside) of a storage, or None
  Recorder& r = of(self);
  int32_t number = -1;
  bool external = false;
  {
    Lock lock(r);
    auto entry = r.live.find(static_cast<c10::StorageImpl*>(PyLong_AsVoidPtr(address)));
    if (entry != r.live.end() && entry->second.weak.use_count() > 0) {
      number = entry->second.number, external = entry->second.external;
    }
  }
  return number < 0 ? none() : Py_BuildValue("(iO)", number, external ? Py_True : Py_False);
}

// (number, storage, gradient's number, gradient's storage) of tensors, as bytes: objects would keep the garbage
// collector busy. NativeNumbers.look says what `how` means.
PyObject* core_look(PyObject* self, PyObject* args) {
  PyObject* addresses;
  const char* how;
  if (!PyArg_ParseTuple(args, "O!s", &PyList_Type, &addresses, &how)) return nullptr;
  Recorder& r = of(self);
  std::vector<int32_t> found;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(addresses); ++i) {
    at::Tensor tensor(tensor_at(PyList_GET_ITEM(addresses, i)));
    at::Tensor gradient = tensor.is_leaf() ? tensor.grad() : at::Tensor();
    if (gradient.defined() && gradient.key_set().has_any(kTakesOver)) return none();
    Lock lock(r);
    auto [number, storage] = r.numbers_of(tensor, *how, lock);
    auto [second, memory] = gradient.defined() ? r.numbers_of(gradient, *how == 'r' ? 'r' : 'i', lock) : std::pair(-1, -1);
    found.insert(found.end(), {number, storage, second, memory});
  }
  return PyBytes_FromStringAndSize(reinterpret_cast<const char*>(found.data()),
                                   static_cast<Py_ssize_t>(found.size() * sizeof(int32_t)));
}

PyObject* core_forget(PyObject* self, PyObject* address) {
  Recorder& r = of(self);
  auto tensor = tensor_at(address);
  Lock lock(r);
  r.forget(tensor);
  return none();
}

PyObject* core_note_size(PyObject* self, PyObject* address) {
  Recorder& r = of(self);
  Lock lock(r);
  r.note_size(static_cast<c10::StorageImpl*>(PyLong_AsVoidPtr(address)));
  return none();
}

PyObject* core_leaves(PyObject* self, PyObject*) {  // tensors that have a gradient, but those that Python watches
  Recorder& r = of(self);
  std::vector<at::Tensor> leaves;
  {
    std::vector<at::Tensor> all;
    Lock lock(r);
    for (auto& entry : r.known) {
      if (auto impl = entry.second.weak.lock()) all.emplace_back(std::move(impl));
    }
    lock.unlock();
    for (auto& tensor : all) {
      if (tensor.requires_grad() && tensor.is_leaf() && tensor.grad().defined()) leaves.push_back(tensor);
    }
  }
  PyObject* list = PyList_New(0);
  for (const auto& tensor : leaves) PyList_Append(list, Ref(THPVariable_Wrap(tensor)));
  return list;
}

// ([(operator's number, call, code, instruction, in a checkpoint that recomputes)], the innermost code of the last one, its
// instruction)
PyObject* core_failures(PyObject* self, PyObject*) {
  Recorder& r = of(self);
  std::vector<Row> rows;
  { Lock lock(r); rows = r.failures; }
  PyObject* list = PyList_New(0);
  for (const Row& row : rows) {
    PyObject* code = row.code ? reinterpret_cast<PyObject*>(row.code) : Py_None;
    PyList_Append(list, Ref(Py_BuildValue("(LiOiO)", row.plan->number, row.call, code, row.instruction, row.grad == 2 ? Py_True : Py_False)));
  }
  return Py_BuildValue("(NNi)", list, PyLong_FromVoidPtr(r.failed_in), r.failed_at);
}

PyObject* core_error(PyObject* self, PyObject*) {
  Recorder& r = of(self);
  return Py_NewRef(r.error ? r.error.object : Py_None);
}

PyObject* core_release(PyObject* self, PyObject* codes_too) {
  forget_all(of(self), PyObject_IsTrue(codes_too));
  return none();
}

PyObject* core_counts(PyObject* self, PyObject*) {  // ops, code objects, layouts, the allocator's peak
  Recorder& r = of(self);
  Lock lock(r);
  auto ops = r.ops, codes = r.codes.size(), layouts = r.layouts.size();
  auto peak = r.deaf ? -1ll : static_cast<long long>(r.peak);
  lock.unlock();
  return Py_BuildValue("(nnnL)", ops, codes, layouts, peak);
}

PyObject* core_count(PyObject* self, PyObject* grad) {  // an op that the recorder in Python has recorded
  Recorder& r = of(self);
  Lock lock(r);
  ++r.ops;
  r.note_number(at::sequence_number::peek() - 1, PyObject_IsTrue(grad));
  return none();
}

PyObject* core_live(PyObject* self, PyObject*) {  // the numbers of the storages that are there and came to be meanwhile
  Recorder& r = of(self);
  std::vector<int32_t> numbers;
  {
    Lock lock(r);
    for (const auto& entry : r.live) {
      if (!entry.second.external && entry.second.weak.use_count() > 0) numbers.push_back(entry.second.number);
    }
  }
  return list_of(numbers, [](int32_t number) { return PyLong_FromLong(number); });
}

PyObject* core_ops(PyObject* self, PyObject*) {
  Recorder& r = of(self);
  Lock lock(r);
  return PyLong_FromSize_t(r.ops);
}

// The first op under a number of autograd's or a later one, or None
PyObject* core_first_op(PyObject* self, PyObject* args) {
  long long number;
  int grad;
  if (!PyArg_ParseTuple(args, "Lp", &number, &grad)) return nullptr;
  Recorder& r = of(self);
  Lock lock(r);
  const auto& firsts = r.first_ops[grad];
  auto found = std::lower_bound(firsts.begin(), firsts.end(), std::make_pair(int64_t{number}, int64_t{0}));
  return found == firsts.end() ? none() : PyLong_FromLongLong(found->second);
}

PyMethodDef core_methods[] = {
    {"start", core_start, METH_O, nullptr}, {"stop", core_stop, METH_NOARGS, nullptr},
    {"hand_over", core_hand_over, METH_VARARGS, nullptr}, {"abandon", core_abandon, METH_NOARGS, nullptr},
    {"attach", core_attach, METH_O, nullptr}, {"detach", core_detach, METH_NOARGS, nullptr},
    {"place", core_place, METH_NOARGS, nullptr}, {"succeed", core_succeed, METH_O, nullptr},
    {"pause", core_pause, METH_O, nullptr}, {"unrecorded", core_unrecorded, METH_VARARGS, nullptr},
    {"drain", core_drain, METH_O, nullptr},
    {"note", core_note, METH_O, nullptr}, {"summary", core_summary, METH_NOARGS, nullptr},
    {"mark", core_mark, METH_NOARGS, nullptr}, {"marks", core_marks, METH_NOARGS, nullptr},
    {"tensors", core_tensors, METH_O, nullptr}, {"storages", core_storages, METH_O, nullptr},
    {"number", core_number, METH_VARARGS, nullptr}, {"gone", core_gone, METH_O, nullptr}, {"known", core_known, METH_O, nullptr},
    {"memory", core_memory, METH_O, nullptr}, {"look", core_look, METH_VARARGS, nullptr},
    {"forget", core_forget, METH_O, nullptr}, {"note_size", core_note_size, METH_O, nullptr},
    {"leaves", core_leaves, METH_NOARGS, nullptr}, {"failures", core_failures, METH_NOARGS, nullptr},
    {"error", core_error, METH_NOARGS, nullptr}, {"release", core_release, METH_O, nullptr},
    {"counts", core_counts, METH_NOARGS, nullptr}, {"count", core_count, METH_O, nullptr},
    {"first_op", core_first_op, METH_VARARGS, nullptr}, {"live", core_live, METH_NOARGS, nullptr},
    {"ops", core_ops, METH_NOARGS, nullptr}, {nullptr, nullptr, 0, nullptr}};

PyType_Slot core_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(core_new)}, {Py_tp_dealloc, reinterpret_cast<void*>(core_dealloc)},
    {Py_tp_traverse, reinterpret_cast<void*>(core_traverse)}, {Py_tp_clear, reinterpret_cast<void*>(core_clear)},
    {Py_tp_methods, core_methods}, {0, nullptr}};
PyType_Spec core_spec = {"_recorder.Core", sizeof(Core), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, core_slots};

}  // namespace

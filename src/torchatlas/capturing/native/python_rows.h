// Rows, tensors and storages -> the Python objects of row_schema.py, when somebody asks for them. All with the GIL.
// `decode` undoes `encode` of tokens.h; `drain` writes the ops that have ended since it was last called.

namespace {

template <typename Items, typename Function>
PyObject* list_of(const Items& items, const Function& function) {
  PyObject* list = PyList_New(static_cast<Py_ssize_t>(items.size()));
  Py_ssize_t at = 0;
  for (const auto& item : items) PyList_SET_ITEM(list, at++, function(item));
  return list;
}

inline PyObject* Recorder::to_python(const IValue& value, As as) {
  if (value.isNone()) return Py_NewRef(Py_None);
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    if (!tensor.defined()) return Py_NewRef(Py_None);
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) return to_python(number_in(tensor), As::Plain);
    return THPVariable_Wrap(tensor);
  }
  if (value.isInt()) {
    int64_t number = value.toInt();
    switch (as) {
      case As::Plain: return PyLong_FromLongLong(number);
      case As::Dtype: return Py_NewRef(reinterpret_cast<PyObject*>(torch::getTHPDtype(static_cast<at::ScalarType>(number))));
      case As::Layout: return Py_NewRef(reinterpret_cast<PyObject*>(torch::getTHPLayout(static_cast<at::Layout>(number))));
      case As::MemoryFormat: return Py_NewRef(torch::utils::getTHPMemoryFormat(static_cast<at::MemoryFormat>(number)));
    }
  }
  if (value.isBool()) return PyBool_FromLong(value.toBool());
  if (value.isDouble()) return PyFloat_FromDouble(value.toDouble());
  if (value.isComplexDouble()) {
    auto number = value.toComplexDouble();
    return PyComplex_FromDoubles(number.real(), number.imag());
  }
  if (value.isString()) return PyUnicode_FromStringAndSize(value.toStringRef().data(), value.toStringRef().size());
  if (value.isDevice()) return THPDevice_New(value.toDevice());
  if (value.isGenerator()) return THPGenerator_Wrap(value.toGenerator());
  if (value.isIntList()) return list_of(value.toIntVector(), [](int64_t item) { return PyLong_FromLongLong(item); });
  if (value.isDoubleList()) return list_of(value.toDoubleVector(), [](double item) { return PyFloat_FromDouble(item); });
  if (value.isBoolList()) return list_of(value.toBoolList().vec(), [](bool item) { return PyBool_FromLong(item); });
  if (value.isList()) {
    auto items = value.toListRef();
    return list_of(items, [&](const IValue& item) { return to_python(item, As::Plain); });
  }
  return opaque_named(value.tagKind());
}

inline PyObject* Recorder::opaque_named(const std::string& name) {
  return PyObject_CallFunction(opaque, "s", name.c_str());
}

// One argument or result. `numbers` collects tensors, and `place` stands for them, if it is given.
inline PyObject* Recorder::decode(const int64_t*& token, const IValue* kept, As as, PyObject* numbers) {
  int64_t tag = *token & 7, payload = *token >> 3;
  ++token;
  switch (tag) {
    case kNone: return Py_NewRef(Py_None);
    case kTensor:
      if (!numbers) return PyLong_FromLongLong(payload);
      PyList_Append(numbers, Ref(PyLong_FromLongLong(payload)));
      return Py_NewRef(place.object);
    case kList: {
      PyObject* list = PyList_New(payload);
      for (int64_t i = 0; i < payload; ++i) PyList_SET_ITEM(list, i, decode(token, kept, As::Plain, numbers));
      return list;
    }
    case kInt: return to_python(IValue(payload), as);
    case kBool: return PyBool_FromLong(payload);
    case kOpaque: return opaque_named(kept[payload].toStringRef());
    case kNumber: {
      Ref number(to_python(kept[payload], As::Plain));
      return numbers ? number.release() : PyTuple_Pack(1, number.object);
    }
    default: return to_python(kept[payload], as);
  }
}

template <typename Add>
void Recorder::add_arguments(const Row& row, const Plan& plan, std::vector<PyObject*>& arguments, PyObject* numbers,
                             Add& add) {
  auto item = [&](int64_t i, PyObject* absent) { return Py_NewRef(arguments[i] ? arguments[i] : absent); };
  if (!plan.readable) {
    Ref args(PyTuple_New(row.given)), kwargs(PyDict_New());
    for (int64_t i = 0; i < row.given; ++i) PyTuple_SET_ITEM(args.object, i, item(i, Py_None));
    for (size_t i = row.op->positional; i < arguments.size(); ++i) {
      if (arguments[i]) PyDict_SetItem(kwargs, row.op->names[i], arguments[i]);
    }
    Ref tree(PyObject_CallFunctionObjArgs(structure, args.object, kwargs.object, nullptr));
    if (tree) add(PyTuple_Pack(2, numbers, tree.object));
    return;
  }
  for (int64_t slot : plan.slots) add(item(slot, Py_None));
  if (!plan.others.empty()) {
    int64_t first = plan.others[0];
    auto count = plan.sliced ? std::max<int64_t>(row.given - first, 0) : static_cast<int64_t>(plan.others.size());
    PyObject* others = PyTuple_New(count);
    for (int64_t i = 0; i < count; ++i) PyTuple_SET_ITEM(others, i, item(plan.sliced ? first + i : plan.others[i], omitted));
    add(others);
  }
  if (plan.has_keywords) {
    PyObject* keywords = PyDict_New();
    for (int64_t i : plan.keywords) {
      if (arguments[i]) PyDict_SetItem(keywords, row.op->names[i], arguments[i]);
    }
    add(keywords);
  }
}

template <typename Add>
void Recorder::add_results(const Plan& plan, const int64_t* token, const int64_t* end, const IValue* kept, Add& add) {
  if (plan.result == 0 || token == end) return add(Py_NewRef(Py_None));
  if (plan.result == 1) return add(decode(token, kept, As::Plain, nullptr));
  PyObject* list = PyList_New(0);
  while (token < end) {
    bool tensors = (*token & 7) == kTensor || (*token & 7) == kList || (*token & 7) == kNone;
    Ref item(decode(token, kept, As::Plain, nullptr));
    PyList_Append(list, tensors ? item.object : Py_None);
  }
  add(list);
}

inline bool Recorder::drain(PyObject* list) {
  std::vector<Row> taken;
  std::vector<int64_t> its_tokens;
  std::vector<IValue> its_values;
  std::vector<PyObject*> its_notes;
  {
    Lock lock(*this);
    bool running = slot >= 0 && slots[slot].load() == this;
    if (running) poll(polled.size());  // what dies after the end is no part of the recording
    auto pending = std::find_if(rows.begin(), rows.end(), [](const Row& row) { return row.kind == Row::Pending; });
    if (rows.empty() || (running && pending != rows.end())) return true;  // later
    taken.swap(rows), its_tokens.swap(tokens), its_values.swap(values), its_notes.swap(noted);
    first_row += static_cast<int64_t>(taken.size());
    rows.reserve(std::min<size_t>(taken.size(), 1 << 16));
  }
  auto add = [&](PyObject* item) { PyList_Append(list, item); Py_DECREF(item); };
  std::vector<PyObject*> arguments;
  for (const Row& row : taken) {
    if (row.kind == Row::Pending) continue;  // the recording ended inside of it
    if (row.kind == Row::Noted) {
      add(its_notes[row.start]);
      continue;
    }
    if (row.kind == Row::Mark) {
      marks.push_back(PyList_GET_SIZE(list));
      continue;
    }
    if (row.kind != Row::Op) {
      PyObject* kind = PyTuple_GET_ITEM(events.object, row.kind - 1);
      add(row.kind == Row::Died ? PyObject_CallFunction(kind, "L", row.start)
                                : PyObject_CallFunction(kind, "LL", row.start, row.end));
      continue;
    }
    const Plan& plan = *row.plan;
    add(PyLong_FromLongLong(plan.number));
    add(PyLong_FromLongLong(row.start));
    add(PyLong_FromLongLong(row.end));
    add(PyLong_FromUnsignedLongLong(row.next_nr));
    add(row.in_backward ? PyLong_FromUnsignedLongLong(row.backward_nr) : Py_NewRef(Py_None));
    add(PyLong_FromLong(row.call));
    add(Py_NewRef(row.code ? reinterpret_cast<PyObject*>(row.code) : Py_None));
    add(PyLong_FromLong(row.code ? row.instruction : 0));
    add(row.grad == 2 ? PyLong_FromLong(2) : PyBool_FromLong(row.grad));
    add(row.needs == 2 ? PyLong_FromLong(2) : PyBool_FromLong(row.needs));
    add(PyLong_FromLong(row.callers));
    const int64_t* token = its_tokens.data() + row.tokens;
    const IValue* kept = its_values.data() + row.values;
    Ref numbers(plan.readable ? nullptr : PyList_New(0));
    arguments.assign(row.op->arguments.size(), nullptr);
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (is_there(row, i)) arguments[i] = decode(token, kept, row.op->arguments[i].as, numbers);
    }
    add_arguments(row, plan, arguments, numbers, add);
    for (PyObject* argument : arguments) Py_XDECREF(argument);
    add_results(plan, token, its_tokens.data() + row.tokens + row.token_count, kept, add);
    if (PyErr_Occurred()) return false;
  }
  return true;
}

inline void Recorder::drain_tensors(PyObject* list) {
  std::vector<TensorRow> rows;
  std::vector<size_t> begins;  // of layouts that Python has no tuples of
  std::vector<int64_t> pool;
  size_t first;
  {
    Lock lock(*this);
    first = tensors_drained;
    rows.assign(tensors.begin() + first, tensors.end());
    tensors_drained = tensors.size();
    for (size_t id = shapes.size(); id < layouts.size(); ++id) begins.push_back(layouts[id].first);
    pool.assign(layout_pool.begin() + (begins.empty() ? layout_pool.size() : begins[0]), layout_pool.end());
  }
  for (size_t begin : begins) {  // without the mutex: see core_known
    const int64_t* at = &pool[begin - begins[0]];
    auto tuple = [&](const int64_t* items) {
      PyObject* made = PyTuple_New(at[0]);
      for (int64_t i = 0; i < at[0]; ++i) PyTuple_SET_ITEM(made, i, PyLong_FromLongLong(items[i]));
      return made;
    };
    shapes.push_back(tuple(at + 1)), strides.push_back(tuple(at + 1 + at[0]));
  }
  auto add = [&](PyObject* item) { PyList_Append(list, item); Py_DECREF(item); };
  for (size_t i = 0; i < rows.size(); ++i) {
    const TensorRow& row = rows[i];
    add(PyLong_FromSize_t(first + i));
    add(PyLong_FromLong(row.storage));
    add(Py_NewRef(row.layout >= 0 ? shapes[row.layout] : row.odd ? PyTuple_GET_ITEM(row.odd, 0) : Py_None));
    add(Py_NewRef(row.layout >= 0 ? strides[row.layout] : row.odd ? PyTuple_GET_ITEM(row.odd, 1) : Py_None));
    add(PyLong_FromLongLong(row.offset));
    add(Py_NewRef(reinterpret_cast<PyObject*>(torch::getTHPDtype(row.dtype))));
  }
}

inline void Recorder::drain_storages(PyObject* list) {
  std::vector<StorageRow> rows;
  size_t first;
  {
    Lock lock(*this);
    first = storages_drained;
    rows.assign(storages.begin() + first, storages.end());
    storages_drained = storages.size();
  }
  auto add = [&](PyObject* item) { PyList_Append(list, item); Py_DECREF(item); };
  for (size_t i = 0; i < rows.size(); ++i) {
    add(PyLong_FromSize_t(first + i));
    add(Py_NewRef(Py_None));
    add(PyLong_FromLongLong(rows[i].bytes));
    add(THPDevice_New(rows[i].device));
  }
}

// (hash of the structure, times of ops, ((ops before it, bytes) of what died), events of Python's, odd tensors); None if
// some of it was drained already.
inline PyObject* Recorder::summary() {
  Lock lock(*this);
  if (first_row > 0) return none();
  std::vector<int64_t> times;
  std::vector<std::pair<int64_t, int64_t>> deaths;
  for (const Row& row : rows) {
    if (row.kind == Row::Op) times.push_back(row.end - row.start);
    if (row.kind == Row::Died) deaths.emplace_back(times.size(), std::max<int64_t>(storages[row.start].bytes, 0));
  }
  uint64_t hash = structure_hash();
  Ref freed(PyTuple_New(static_cast<Py_ssize_t>(deaths.size())));
  for (size_t i = 0; i < deaths.size(); ++i) {
    PyTuple_SET_ITEM(freed.object, i, Py_BuildValue("(LL)", deaths[i].first, deaths[i].second));
  }
  Ref odd(PyList_New(0));
  for (const TensorRow& row : tensors) {
    if (row.odd) PyList_Append(odd, row.odd);
  }
  PyObject* notes = list_of(noted, [](PyObject* event) { return Py_NewRef(event); });
  return Py_BuildValue("(Ky#NNN)", hash, reinterpret_cast<const char*>(times.data()),
                       static_cast<Py_ssize_t>(times.size() * sizeof(int64_t)), freed.release(), notes, odd.release());
}

}  // namespace

// A tensor -> its number: found by its address while it is alive, entered when it is first met. All with the mutex.

namespace {

inline bool is_plain(const c10::TensorImpl* impl) {
  return impl->has_storage() && !impl->has_symbolic_sizes_strides() && impl->layout() == at::kStrided &&
      !impl->key_set().has_any(kUnusual - DispatchKeySet(DispatchKey::Quantized)) && !impl->key_set().has_any(kTakesOver);
}

inline int32_t Recorder::layout_of(const c10::TensorImpl* impl) {
  auto sizes = impl->sizes(), strides = impl->strides();
  uint64_t hash = sizes.size();
  for (auto size : sizes) mix(hash, size);
  for (auto step : strides) mix(hash, step);
  auto [found, is_new] = layout_by_hash.emplace(hash, static_cast<int32_t>(layouts.size()));
  int32_t next = -1;
  if (!is_new) {
    for (int32_t id = found->second; id >= 0; id = layouts[id].second) {
      if (is_layout(id, impl)) return id;
    }
    next = std::exchange(found->second, static_cast<int32_t>(layouts.size()));
  }
  layouts.emplace_back(layout_pool.size(), next);
  layout_pool.push_back(static_cast<int64_t>(sizes.size()));
  layout_pool.insert(layout_pool.end(), sizes.begin(), sizes.end());
  layout_pool.insert(layout_pool.end(), strides.begin(), strides.end());
  return static_cast<int32_t>(layouts.size()) - 1;
}

inline bool Recorder::is_layout(int32_t id, const c10::TensorImpl* impl) const {
  const int64_t* at = &layout_pool[layouts[id].first];
  auto sizes = impl->sizes(), strides = impl->strides();
  return at[0] == static_cast<int64_t>(sizes.size()) && std::equal(sizes.begin(), sizes.end(), at + 1) &&
      std::equal(strides.begin(), strides.end(), at + 1 + at[0]);
}

inline bool Recorder::has_sizes(int32_t id, const c10::TensorImpl* impl) const {
  const int64_t* at = &layout_pool[layouts[id].first];
  auto sizes = impl->sizes();
  return at[0] == static_cast<int64_t>(sizes.size()) && std::equal(sizes.begin(), sizes.end(), at + 1);
}

inline void Recorder::give_up(ska::flat_hash_map<c10::TensorImpl*, Known>::iterator entry) {
  given_up.push_back(std::move(entry->second.weak));
  known.erase(entry);
}

inline void Recorder::sweep() {  // tensors that are no more: their addresses may serve again
  for (auto entry = known.begin(); entry != known.end();) {
    if (entry->second.ended()) {
      given_up.push_back(std::move(entry->second.weak));
      entry = known.erase(entry);
    } else {
      ++entry;
    }
  }
  sweep_at = 2 * known.size() + 256;
}

inline Known* Recorder::find(c10::TensorImpl* impl) {
  auto found = known.find(impl);
  if (found == known.end()) return nullptr;
  Known& entry = found->second;
  if (!entry.ended()) {
    if (entry.layout < 0) return &entry;
    if (impl->has_storage() && entry.memory == impl->unsafe_storage().unsafeGetStorageImpl() &&
        entry.offset == impl->storage_offset() && is_layout(entry.layout, impl)) {
      return &entry;
    }
  }
  give_up(found);  // another tensor at this address, or one that was laid out anew without an op
  return nullptr;
}

inline int32_t Recorder::number_of(const at::TensorBase& tensor, bool external, Lock& lock) {
  auto* impl = tensor.unsafeGetTensorImpl();
  if (Known* entry = find(impl)) return entry->number;
  if (!is_plain(impl)) return number_of_odd(tensor, external, lock);
  auto* memory = impl->unsafe_storage().unsafeGetStorageImpl();
  int64_t bytes = impl->key_set().has(DispatchKey::ZeroTensor) ? 0 : -1;  // it tells a size, and there is no memory behind it
  int32_t storage = storage_of(memory, external, bytes).number, layout = layout_of(impl);
  auto number = static_cast<int32_t>(tensors.size());
  tensors.push_back({storage, layout, impl->storage_offset(), c10::typeMetaToScalarType(impl->dtype()), nullptr});
  remember(tensor, {WeakImpl(Impl()), memory, impl->storage_offset(), number, storage, layout}, lock);
  return number;
}

// The numbers of a tensor and its storage: of any one ('r'), of one that was seen ('s'), of one whose memory was ('i').
inline std::pair<int32_t, int32_t> Recorder::numbers_of(const at::TensorBase& tensor, char how, Lock& lock) {
  auto* impl = tensor.unsafeGetTensorImpl();
  Known* entry = find(impl);
  if (!entry) {
    if (how == 's') return {-1, -1};
    if (how == 'i') {
      if (!is_plain(impl)) return {-1, -1};
      auto found = live.find(impl->unsafe_storage().unsafeGetStorageImpl());
      if (found == live.end() || found->second.weak.use_count() == 0) return {-1, -1};
    }
    number_of(tensor, true, lock);
    entry = find(impl);
  }
  return {entry->number, entry->storage};
}

// c10's weak reference keeps the shell of a tensor, without what `release_resources` lets go of. Classes of their own own more
// than that: a batched tensor its value, a quantized one its scales, a compressed one its indices. All that would live on.
inline bool lets_go(const c10::TensorImpl* impl) {
  return typeid(*impl) == typeid(c10::TensorImpl) && !impl->has_symbolic_sizes_strides();
}

inline void Recorder::remember(const at::TensorBase& tensor, Known&& entry, Lock& lock) {
  auto* impl = tensor.unsafeGetTensorImpl();
  bool alone = !lone.empty() && lone.back().first == impl;
  entry.watched = (alone || !lets_go(impl)) && watch(tensor, lock);
  if (!entry.watched) entry.weak = WeakImpl(tensor.getIntrusivePtr());
  if (known.size() >= sweep_at) sweep();
  auto [place, is_new] = known.emplace(impl, std::move(entry));
  if (!is_new) std::swap(place->second, entry), given_up.push_back(std::move(entry.weak));
}

// Python's weak reference to the tensor's Python object keeps nothing; `gone` is called when the object ends.
inline bool Recorder::watch(const at::TensorBase& tensor, Lock& lock) {
  lock.unlock();
  bool watched;
  {
    Gil gil;
    bool was_busy = std::exchange(local().busy, true);
    Ref wrapped(THPVariable_Wrap(tensor)), address(PyLong_FromVoidPtr(tensor.unsafeGetTensorImpl()));
    Ref answer(wrapped && address ? PyObject_CallFunctionObjArgs(watcher, wrapped.object, address.object, nullptr) : nullptr);
    local().busy = was_busy;
    watched = answer;
    if (!watched) PyErr_WriteUnraisable(watcher);
  }
  lock.lock();
  return watched;
}

inline void Recorder::gone(c10::TensorImpl* impl, bool running) {
  if (auto entry = known.find(impl); entry != known.end() && entry->second.watched) known.erase(entry);
  for (size_t i = lone.size(); i-- > 0;) {
    if (lone[i].first != impl) continue;
    if (running) event(Row::Died, lone[i].second);
    lone.erase(lone.begin() + i);
  }
}

// A tensor with several storages, or with none that it shows: Python says what it is made of.
inline int32_t Recorder::number_of_odd(const at::TensorBase& tensor, bool external, Lock& lock) {
  lock.unlock();
  PyObject* described = nullptr;
  std::vector<c10::StorageImpl*> held;
  {
    Gil gil;
    bool was_busy = std::exchange(local().busy, true);
    Ref wrapped(THPVariable_Wrap(tensor));
    Ref answer(wrapped ? PyObject_CallOneArg(odd, wrapped) : nullptr);  // ((shape, layout), storages)
    local().busy = was_busy;
    if (answer) {
      described = Py_NewRef(PyTuple_GET_ITEM(answer.object, 0));
      PyObject* parts = PyTuple_GET_ITEM(answer.object, 1);
      for (Py_ssize_t i = 0; i < PyList_GET_SIZE(parts); ++i) {
        held.push_back(static_cast<c10::StorageImpl*>(PyLong_AsVoidPtr(PyList_GET_ITEM(parts, i))));
      }
    } else {
      PyErr_WriteUnraisable(odd);
    }
  }
  lock.lock();
  int32_t storage;
  if (held.empty()) {
    storage = static_cast<int32_t>(storages.size());
    storages.push_back({-1, tensor.device()});
    lone.emplace_back(tensor.unsafeGetTensorImpl(), storage);
  } else {
    int64_t bytes = 0;
    for (auto* part : held) bytes += live.count(part) ? 0 : static_cast<int64_t>(part->nbytes());
    auto& values = storage_of(held.back(), external, bytes);
    storage = values.number;
    for (auto* part : held) {
      if (live.count(part)) continue;
      Live entry{WeakStorage(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(part)), nullptr, storage, external};
      entry.silent = true;
      watch_end(part, live.emplace(part, std::move(entry)).first->second);
    }
  }
  auto number = static_cast<int32_t>(tensors.size());
  tensors.push_back({storage, -1, 0, c10::typeMetaToScalarType(tensor.dtype()), described});
  remember(tensor, {WeakImpl(Impl()), nullptr, 0, number, storage, -1}, lock);
  return number;
}

inline void Recorder::forget(const at::TensorBase& tensor) {
  auto* impl = tensor.unsafeGetTensorImpl();
  if (auto entry = known.find(impl); entry != known.end()) give_up(entry);
  if (impl->has_storage() && impl->layout() == at::kStrided) note_size(impl->unsafe_storage().unsafeGetStorageImpl());
}

}  // namespace

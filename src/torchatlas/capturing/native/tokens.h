// The arguments and results of an op -> tokens, with the mutex; and the tokens of a step -> a hash of its structure.
// python_rows.h makes Python objects of them.

namespace {

inline bool holds_tensors(const IValue& value) {
  if (value.isTensorList() || value.isOptionalTensorList()) return true;
  if (value.isIntList() || value.isDoubleList() || value.isBoolList() || value.isSymIntList()) return false;
  auto items = value.toListRef();
  return !items.empty() && (items[0].isTensor() || (items[0].isList() && holds_tensors(items[0])));
}

template <typename Function>
void each_tensor(const IValue& value, const Function& function) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) function(value.toTensor());
  } else if (value.isList() && holds_tensors(value)) {
    for (const IValue& item : value.toListRef()) each_tensor(item, function);
  }
}

inline IValue number_in(const at::Tensor& tensor) {
  const void* data = tensor.unsafeGetTensorImpl()->data();
  switch (tensor.scalar_type()) {
    case at::kLong: return IValue(*static_cast<const int64_t*>(data));
    case at::kDouble: return IValue(*static_cast<const double*>(data));
    case at::kBool: return IValue(*static_cast<const bool*>(data));
    case at::kFloat: return IValue(static_cast<double>(*static_cast<const float*>(data)));
    case at::kComplexDouble: return IValue(*static_cast<const c10::complex<double>*>(data));
    default: return IValue();
  }
}

inline void Recorder::encode(const IValue& value, Frame& frame, bool external, Lock& lock) {
  auto put = [&](Tag tag, int64_t payload) { frame.tokens.push_back(payload * 8 + tag); };
  auto keep = [&](Tag tag, IValue kept) {
    frame.values.push_back(std::move(kept));
    put(tag, static_cast<int64_t>(frame.values.size()) - 1);
  };
  if (value.isNone()) {
    put(kNone, 0);
  } else if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    if (!tensor.defined()) {
      put(kNone, 0);
    } else if (external && tensor.unsafeGetTensorImpl()->is_wrapped_number() && !find(tensor.unsafeGetTensorImpl())) {
      keep(kNumber, number_in(tensor));
    } else {
      put(kTensor, number_of(tensor, external, lock));
    }
  } else if (value.isInt()) {
    int64_t number = value.toInt();
    if (std::abs(number / 2) < int64_t{1} << 58) put(kInt, number); else keep(kValue, value);
  } else if (value.isBool()) {
    put(kBool, value.toBool());
  } else if (value.isList() && holds_tensors(value)) {
    auto items = value.toListRef();
    put(kList, static_cast<int64_t>(items.size()));
    for (const IValue& item : items) encode(item, frame, external, lock);
  } else if (value.isStorage()) {
    keep(kOpaque, IValue(std::string("torch.storage.UntypedStorage")));
  } else if (value.isObject() || value.isCapsule() || value.isGenericDict() || value.isTuple() || value.isFuture() ||
             value.isRRef() || value.isPyObject() || value.isStream()) {
    keep(kOpaque, IValue(value.isObject() ? std::string("torch.ScriptObject") : value.tagKind()));
  } else {
    keep(kValue, value);
  }
}

// -- the structure of a step, without a word of Python --

inline void mix_value(uint64_t& hash, const IValue& value, bool number) {
  mix(hash, static_cast<int64_t>(std::hash<std::string>()(value.tagKind())));
  if (number || value.isDouble() || value.isComplexDouble() || value.isDoubleList()) return;
  if (value.isInt()) return mix(hash, value.toInt());
  if (value.isIntList()) {
    for (int64_t item : value.toIntVector()) mix(hash, item);
  } else if (value.isBoolList()) {
    for (bool item : value.toBoolList().vec()) mix(hash, item);
  } else if (value.isString()) {
    mix(hash, static_cast<int64_t>(std::hash<std::string>()(value.toStringRef())));
  } else if (value.isDevice()) {
    mix(hash, static_cast<int64_t>(value.toDevice().type())), mix(hash, value.toDevice().index());
  } else if (value.isList()) {
    for (const IValue& item : value.toListRef()) mix_value(hash, item, number);
  }
}

inline void mix_token(uint64_t& hash, const int64_t*& token, const IValue* kept, bool number) {
  int64_t tag = *token & 7, payload = *token >> 3;
  ++token;
  mix(hash, tag);
  if (tag == kTensor || tag == kBool || tag == kList) mix(hash, payload);
  if (tag == kList) {
    for (int64_t i = 0; i < payload; ++i) mix_token(hash, token, kept, number);
  } else if (tag == kInt && !number) {
    mix(hash, payload);
  } else if (tag == kValue || tag == kNumber || tag == kOpaque) {
    mix_value(hash, kept[payload], number);
  }
}

// What ran, on which tensors, in which calls; not the value of a number, which may be a learning rate: see step_rows.py.
inline uint64_t Recorder::structure_hash() const {
  uint64_t hash = rows.size();
  for (const TensorRow& row : tensors) {
    mix(hash, row.storage), mix(hash, row.offset), mix(hash, static_cast<int64_t>(row.dtype));
    if (row.layout < 0) continue;  // Python tells those
    const int64_t* at = &layout_pool[layouts[row.layout].first];
    for (int64_t i = 0; i <= 2 * at[0]; ++i) mix(hash, at[i]);
  }
  for (const StorageRow& row : storages) mix(hash, row.bytes), mix(hash, static_cast<int64_t>(row.device.type()));
  for (const Row& row : rows) {
    if (row.kind == Row::Died || row.kind == Row::Mark || row.kind == Row::Pending) continue;
    mix(hash, row.kind);
    if (row.kind != Row::Op) {
      mix(hash, row.start), mix(hash, row.end);
      continue;
    }
    mix(hash, reinterpret_cast<intptr_t>(row.op)), mix(hash, row.call), mix(hash, row.in_backward * 4 + row.grad);
    mix(hash, row.given), mix(hash, static_cast<int64_t>(row.present));
    const int64_t* token = &tokens[row.tokens];
    const int64_t* end = token + row.token_count;
    for (size_t i = 0; i < row.op->arguments.size(); ++i) {
      if (is_there(row, i)) mix_token(hash, token, &values[row.values], row.op->arguments[i].number);
    }
    while (token < end) mix_token(hash, token, &values[row.values], false);
  }
  return hash;
}

}  // namespace

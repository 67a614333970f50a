// What the dispatcher knows of an operator -> what we need at each call: its name, its arguments, which kernels it has.
// An Operator is made once per process; a Plan is what Python adds to it, once per recording.

namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::IValue;

// Kinds of tensors and modes, by who runs their ops.
const DispatchKeySet kTransforms({
    DispatchKey::FuncTorchBatched, DispatchKey::FuncTorchGradWrapper, DispatchKey::FuncTorchDynamicLayerFrontMode,
    DispatchKey::FuncTorchDynamicLayerBackMode, DispatchKey::FuncTorchVmapMode, DispatchKey::Batched,
    DispatchKey::VmapMode, DispatchKey::BatchedNestedTensor});
const DispatchKeySet kPython({DispatchKey::Python, DispatchKey::PythonTLSSnapshot, DispatchKey::Functionalize});
const DispatchKeySet kTakesOver = kTransforms | kPython;
const DispatchKeySet kAutograd(DispatchKey::AutogradFunctionality);
const DispatchKeySet kUnusual = DispatchKeySet({DispatchKey::Sparse, DispatchKey::SparseCsr, DispatchKey::NestedTensor,
                                               DispatchKey::Quantized});

enum class As : uint8_t { Plain, Dtype, Layout, MemoryFormat };  // what an integer argument stands for

struct Argument {
  const c10::Argument* schema;
  const IValue* standard;  // the default, or null
  As as;
  bool written;
  bool number;  // a real number, or several: its value is no part of a step's structure
};

// What is known of an operator. Made once, never freed.
struct Operator {
  c10::OperatorHandle handle;
  std::string name, overload;
  bool composite, has_autograd, changes_layout;
  bool detaches;
  bool marks;     // a mark of the profiler's: what it begins goes on after it has returned
  std::vector<Argument> arguments;
  size_t positional = 0;
  std::vector<PyObject*> names;  // of the arguments, made with the GIL
};

// The composite operators that called an op: a number for each sequence of them, outermost first, 0 for none. Kept once per
// process and never freed, as operators are.
struct Callers {
  std::mutex mutex;
  std::vector<std::pair<int32_t, const Operator*>> all{{0, nullptr}};  // those around it, and the innermost one
  std::map<std::pair<int32_t, const Operator*>, int32_t> numbers;
};

inline Callers& callers() {
  static auto* made = new Callers;
  return *made;
}

inline int32_t callers_with(int32_t outer, const Operator* op) {
  struct Entry { const Operator* op; int32_t outer, number; };
  static thread_local std::array<Entry, 64> known{};  // composite operators are called as often as ops
  auto& entry = known[((reinterpret_cast<uintptr_t>(op) >> 5) + outer) % known.size()];
  if (entry.op == op && entry.outer == outer) return entry.number;
  Callers& of = callers();
  std::lock_guard<std::mutex> lock(of.mutex);
  int32_t number = outer;
  if (of.all[outer].second != op) {  // autocast calls an operator by its own name once more
    number = of.numbers.emplace(std::make_pair(outer, op), static_cast<int32_t>(of.all.size())).first->second;
    if (number == static_cast<int32_t>(of.all.size())) of.all.emplace_back(outer, op);
  }
  entry = {op, outer, number};
  return number;
}

struct Plan {  // what Python knows of an operator; see NativeRecorder._describe
  long long number;  // negative: no part of the program
  bool readable = false, sliced = false, has_keywords = false, writes = false;
  std::vector<int64_t> slots, others, keywords, targets, hidden, generators;  // positions of arguments
  long long hidden_flag = 0, result = 0;
  int wants = 0;  // what a listener wants to hear of it
};

As kind_of(const c10::Argument& argument) {
  auto type = argument.real_type();
  if (auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  switch (type->kind()) {
    case c10::TypeKind::ScalarTypeType: return As::Dtype;
    case c10::TypeKind::LayoutType: return As::Layout;
    case c10::TypeKind::MemoryFormatType: return As::MemoryFormat;
    default: return As::Plain;
  }
}

bool is_number(const c10::Argument& argument) {
  auto type = argument.type();
  if (auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  if (auto list = type->cast<c10::ListType>()) type = list->getElementType();
  return type->kind() == c10::TypeKind::NumberType || type->kind() == c10::TypeKind::FloatType;
}

Operator* make_operator(const c10::OperatorHandle& handle) {
  auto* op = new Operator{handle, handle.operator_name().name, handle.operator_name().overload_name};
  op->composite = handle.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd) &&
      !handle.hasKernelForDispatchKey(DispatchKey::CPU);
  op->has_autograd = handle.hasKernelForDispatchKey(DispatchKey::Autograd) ||
      handle.hasKernelForDispatchKey(DispatchKey::AutogradCPU);
  op->changes_layout = handle.hasTag(at::Tag::inplace_view);
  op->detaches = op->name == "aten::detach";
  op->marks = op->name.rfind("profiler::", 0) == 0;
  for (const auto& argument : handle.schema().arguments()) {
    const auto& standard = argument.default_value();
    bool written = argument.alias_info() && argument.alias_info()->isWrite();
    op->arguments.push_back({&argument, standard ? &*standard : nullptr, kind_of(argument), written, is_number(argument)});
    op->positional += !argument.kwarg_only();
  }
  return op;
}

// The operator that a RecordFunction is about; null for what is none. The name of a registered operator stays where it is,
// so its address tells which one it is; an operator that was registered anew in the same place has another name or place.
Operator* operator_of(const at::RecordFunction& fn) {
  static thread_local ska::flat_hash_map<const char*, Operator*> known;
  static std::mutex mutex;
  static std::unordered_map<std::string, Operator*> all;
  const char* name = fn.name();
  auto found = known.find(name);
  if (found != known.end() && found->second->name == name && found->second->overload == fn.overload_name()) {
    return found->second;
  }
  auto full = fn.operator_name();
  if (!full) return nullptr;
  auto handle = c10::Dispatcher::singleton().findSchema(*full);
  if (!handle) return nullptr;
  std::lock_guard<std::mutex> lock(mutex);
  auto& op = all[full->name + "." + full->overload_name];
  if (!op || op->handle != *handle) op = make_operator(*handle);
  return known[name] = op;
}

bool is_standard(const IValue& value, const IValue* standard) {
  if (!standard) return false;
  if (value.isNone() || standard->isNone()) return value.isNone() && standard->isNone();
  if (value.isInt() && standard->isInt()) return value.toInt() == standard->toInt();
  if (value.isBool() && standard->isBool()) return value.toBool() == standard->toBool();
  if (value.isTensor() || value.isTensorList()) return false;
  return value == *standard;
}

// True if an operator is only a way to call others, for tensors of these kinds.
inline bool composite(const Operator* op, DispatchKeySet keys) {
  if (!keys.has_any(kUnusual)) return op->composite;
  auto backend = c10::highestPriorityBackendTypeId(keys);
  bool nested = keys.has_any(DispatchKeySet(DispatchKey::NestedTensor)) &&
      op->handle.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutogradNestedTensor);
  return (op->composite || nested) && !op->handle.hasKernelForDispatchKey(backend);
}

inline bool autocast_takes(const Operator* op, DispatchKeySet effective) {
  auto keys = effective & c10::autocast_dispatch_keyset;
  return !keys.empty() && op->handle.hasKernelForDispatchKey(keys.highestPriorityTypeId());
}

}  // namespace

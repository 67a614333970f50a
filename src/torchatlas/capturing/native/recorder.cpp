// The recorder in C++: what torch's dispatcher runs -> the rows of row_schema.py, without a word of Python per op.
//
// torch calls `enter` and `leave` around every call of an operator (at::RecordFunction), also around those that a kernel
// makes for itself. An op is recorded where a dispatch mode of Python would have seen it, and only there:
//   transparent   composite operators, and calls that autocast, a dispatch mode or a wrapper subclass takes over: what they
//                 call is looked at, they themselves leave no row
//   hidden        what the kernel of a recorded op calls; but not what its autograd kernel calls before it
// Rows are kept as numbers (Row, tokens) and become Python objects when somebody asks for them (`drain`).
//
// The GIL is not held while ops run. It is taken only for what is rare: a code object or an operator that is met for the
// first time, a tensor that is no view of a storage, the first write to memory from outside (`guard`), the ops that a
// listener wants to hear of (`told`), and all ops if values are kept. Never while `mutex` is held: who holds the GIL may
// wait for it.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <ATen/SequenceNumber.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <c10/util/flat_hash_map.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/Generator.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/profiler/orchestration/observer.h>
#include <torch/csrc/utils/tensor_memoryformats.h>

#define Py_BUILD_CORE
#include <internal/pycore_frame.h>
#if PY_VERSION_HEX >= 0x030E0000
#include <internal/pycore_interpframe.h>
#endif
#undef Py_BUILD_CORE

PyObject* THPVariable_Wrap(const at::TensorBase& tensor);  // of torch/csrc/autograd/python_variable.h, which is slow to read

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

using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::IValue;
using Impl = c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
using WeakImpl = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;
using Lock = std::unique_lock<std::mutex>;

constexpr auto kFake = c10::impl::TorchDispatchModeKey::FAKE;
constexpr int kSlots = 16;         // recordings at once
constexpr size_t kPolledPerOp = 64;  // storages without an allocator that reports, looked at after each op
// Of code: frames.code_kind (beyond kEnds there is no line of the user's), and a checkpoint's own function.
constexpr int kUser = 0, kSkip = 1, kRecomputes = 2, kEnds = 4;

const DispatchKeySet kTransforms({
    DispatchKey::FuncTorchBatched, DispatchKey::FuncTorchGradWrapper, DispatchKey::FuncTorchDynamicLayerFrontMode,
    DispatchKey::FuncTorchDynamicLayerBackMode, DispatchKey::FuncTorchVmapMode, DispatchKey::Batched,
    DispatchKey::VmapMode, DispatchKey::BatchedNestedTensor});
const DispatchKeySet kPython({DispatchKey::Python, DispatchKey::PythonTLSSnapshot, DispatchKey::Functionalize});
const DispatchKeySet kTakesOver = kTransforms | kPython;
const DispatchKeySet kAutograd(DispatchKey::AutogradFunctionality);
const DispatchKeySet kUnusual = DispatchKeySet({DispatchKey::Sparse, DispatchKey::SparseCsr, DispatchKey::NestedTensor,
                                               DispatchKey::Quantized});

int64_t now() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

void mix(uint64_t& hash, int64_t item) {
  hash = (hash ^ static_cast<uint64_t>(item)) * 0x9E3779B97F4A7C15ull;
  hash ^= hash >> 29;
}

// An op may end because Python code in it has raised, a hook say: that exception has to be there afterwards.
struct Gil {
  PyGILState_STATE state = PyGILState_Ensure();
  PyObject *type, *value, *trace;
  Gil() { PyErr_Fetch(&type, &value, &trace); }
  ~Gil() {
    PyErr_Restore(type, value, trace);
    PyGILState_Release(state);
  }
};

// A Python object that is owned. To be made and destroyed with the GIL.
struct Ref {
  PyObject* object;
  explicit Ref(PyObject* owned = nullptr) : object(owned) {}
  Ref(Ref&& other) noexcept : object(std::exchange(other.object, nullptr)) {}
  Ref(const Ref&) = delete;
  Ref& operator=(Ref&& other) noexcept { std::swap(object, other.object); return *this; }
  ~Ref() { Py_XDECREF(object); }
  operator PyObject*() const { return object; }
  PyObject* release() { return std::exchange(object, nullptr); }
};

// -- frames of Python ---------------------------------------------------------------------------------------------------
// A thread that runs an op has left its Python frames as they are, so it may read them without the GIL. The layout of a
// frame is CPython's own business and differs between versions: it is read here only, and `line_here` lets a test
// compare it with sys._getframe().

#if PY_VERSION_HEX >= 0x030D0000
_PyInterpreterFrame* frame_of(PyThreadState* thread) { return thread->current_frame; }
PyCodeObject* code_of(_PyInterpreterFrame* f) { return _PyFrame_GetCode(f); }
#else
_PyInterpreterFrame* frame_of(PyThreadState* thread) { return thread->cframe->current_frame; }
PyCodeObject* code_of(_PyInterpreterFrame* f) { return f->f_code; }
#endif

_PyInterpreterFrame* top_frame() {
  PyThreadState* thread = PyGILState_GetThisThreadState();
  return thread ? frame_of(thread) : nullptr;
}

int instruction_of(_PyInterpreterFrame* f) { return _PyInterpreterFrame_LASTI(f) * static_cast<int>(sizeof(_Py_CODEUNIT)); }

// -- operators ----------------------------------------------------------------------------------------------------------

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
  bool promises;  // its result tells a size, but there is no memory behind it
  bool detaches;
  bool marks;     // a mark of the profiler's: what it begins goes on after it has returned
  std::vector<Argument> arguments;
  size_t positional = 0;
  std::vector<PyObject*> names;  // of the arguments, made with the GIL
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
  op->promises = op->name == "aten::_efficientzerotensor";
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

// -- rows ---------------------------------------------------------------------------------------------------------------

enum Tag : int64_t { kNone, kTensor, kList, kValue, kInt, kBool, kNumber, kOpaque };  // the low three bits of a token

struct Plan {  // what Python knows of an operator; see NativeRecorder.describe
  long long number;  // negative: no part of the program
  bool readable = false, sliced = false, has_keywords = false, writes = false;
  std::vector<int64_t> slots, others, keywords, targets, hidden, generators;  // positions of arguments
  long long required = 0, hidden_flag = 0, result = 0;
  int wants = 0;  // what a listener wants to hear of it
};

// Why a listener is told of an op; op_listening.py has the same.
constexpr int kAlways = 1, kNotFinite = 2, kNoGradients = 4;

struct Row {
  // Noted: an event of Python's. Mark: where `rows` are asked for later. Pending: see `has_run`
  enum Kind : uint8_t { Op, Died, Resized, Reshaped, Noted, Mark, Pending } kind;
  uint8_t grad, needs, in_backward, given;
  int32_t call, instruction;
  uint64_t present, backward_nr, next_nr;  // `present`: which keyword-only arguments are there
  int64_t start, end;                      // of the other kinds: the two numbers of the event
  Operator* op;
  Plan* plan;
  const Operator* composite;  // the outermost composite operator that called it
  PyCodeObject* code;
  size_t tokens, values;
  uint32_t token_count;
  int64_t allocated, peak;  // bytes that the allocator gave out since the recording began: after it, and at most in it
};

struct Known {  // a tensor
  WeakImpl weak;
  c10::StorageImpl* memory;
  int64_t offset;
  int32_t number, storage, layout;
};

struct Live {  // a storage
  WeakStorage weak;
  void* data;
  int32_t number;
  bool external, guarded, silent;
};

struct TensorRow { int32_t storage, layout; int64_t offset; at::ScalarType dtype; PyObject* odd; };
struct StorageRow { int64_t bytes; c10::Device device; };

struct Recorder;

// The running module call of one thread, and the user's line if it is known beforehand: a list of two to Python.
struct Cell {
  PyObject_HEAD
  PyObject* core;  // what it belongs to
  int64_t call;
  PyObject* line;  // (code, instruction) or None
  PyCodeObject* code;
  int instruction;
};

struct Frame {  // a call that has begun
  enum Kind : uint8_t { Recorded, Transparent, Step } kind;
  bool autograd;  // its autograd kernel runs first
  bool writes_view;
  int below, uncaught;
  const at::RecordFunction* fn;
  const Operator* composite;
  Plan* plan;
  Row row;
  std::vector<int64_t> tokens;
  std::vector<IValue> values;
  int64_t row_at;  // where its row will be, if its place is taken already; see `has_run`
  c10::SmallVector<int32_t, 2> made;  // tensors that it must have made
  c10::SmallVector<at::TensorBase, 2> relaid;  // arguments that may have another layout afterwards
  PyCodeObject* innermost;  // of all frames, not only the user's
  int innermost_instruction;
  std::vector<IValue> inputs;  // if a listener may want to hear of it
};

struct Local {  // what a thread knows of one slot
  uint64_t attached = 0, seen = 0;  // generations
  Cell* cell = nullptr;
  std::vector<Frame> frames;
  int depth = 0, recorded = -1, paused = 0;
  bool busy = false, blind = false;  // `blind`: no listener of ours
  at::CallbackHandle handle = at::INVALID_CALLBACK_HANDLE;
  std::array<std::pair<PyCodeObject*, int>, 256> codes{};
  uint64_t codes_of = 0;
};

std::atomic<Recorder*> slots[kSlots];
std::atomic<int> inside[kSlots];  // threads in a callback
thread_local Local locals[kSlots];
thread_local int looking_away = 0;
std::atomic<uint64_t> generations{0};

struct Recorder {
  // The Python side, set once
  Ref describe, classify, odd, structure, opaque, omitted, place, events, take_over, guard, told, before, after, error;
  Cell* cell = nullptr;  // of the thread that began

  std::mutex mutex;
  std::vector<Row> rows;
  int64_t first_row = 0;  // how many were drained before
  std::vector<int64_t> tokens;
  std::vector<IValue> values;
  std::vector<PyObject*> noted;       // events of Python's, until they are drained
  std::vector<int64_t> marks;         // the positions of marks among the rows in Python, as far as they are drained
  int64_t marked = 0;
  std::vector<TensorRow> tensors;
  std::vector<StorageRow> storages;
  size_t tensors_drained = 0, storages_drained = 0, ops = 0;
  ska::flat_hash_map<c10::TensorImpl*, Known> known;
  ska::flat_hash_map<c10::StorageImpl*, Live> live;
  ska::flat_hash_map<void*, c10::StorageImpl*> by_data;
  std::vector<c10::StorageImpl*> polled;          // whose end no allocator reports
  std::vector<void*> entered;                     // into the table of torch's allocator
  std::vector<std::pair<WeakImpl, int32_t>> lone;  // tensors that stand for their memory
  size_t poll_at = 0, sweep_at = 256;
  std::vector<int64_t> layout_pool;  // dimensions, sizes, strides
  std::vector<std::pair<size_t, int32_t>> layouts;  // position in the pool, the next one with the same hash
  ska::flat_hash_map<uint64_t, int32_t> layout_by_hash;
  std::vector<PyObject*> shapes, strides;  // of layouts, made when they are asked for
  ska::flat_hash_map<PyCodeObject*, int> codes;
  ska::flat_hash_map<Operator*, std::unique_ptr<Plan>> plans;
  // With a listener: autograd's numbers as they rose, and the first op under each; the same with gradients enabled.
  std::vector<std::pair<int64_t, int64_t>> first_ops[2];
  int64_t told_at = -1;  // autograd's number when an op without gradients was last told of
  std::vector<Row> failures;
  PyCodeObject* failed_in = nullptr;
  int failed_at = 0;
  int64_t allocated = 0, peak = 0, row_peak = 0;
  std::atomic<int> aside{0};  // a profiler listens to the allocator in our place
  std::atomic<bool> deaf{false};  // it did so at some time, so the peak is unknown

  int slot = -1;
  uint64_t generation = 0, order = 0;  // `order`: which of several recordings began first

  Local& local() { return locals[slot]; }

  // -- tensors and storages; all with the mutex --

  int32_t layout_of(const c10::TensorImpl* impl) {
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

  bool is_layout(int32_t id, const c10::TensorImpl* impl) const {
    const int64_t* at = &layout_pool[layouts[id].first];
    auto sizes = impl->sizes(), strides = impl->strides();
    return at[0] == static_cast<int64_t>(sizes.size()) && std::equal(sizes.begin(), sizes.end(), at + 1) &&
        std::equal(strides.begin(), strides.end(), at + 1 + at[0]);
  }

  static void* data_of(c10::StorageImpl* memory) { return memory->_mutable_data_ptr_no_checks().get(); }

  Live& storage_of(c10::StorageImpl* memory, bool external, int64_t bytes = -1) {
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
  void watch_end(c10::StorageImpl* memory, Live& entry) {
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

  void died(const Live& entry) {
    if (!entry.silent) event(Row::Died, entry.number);
  }

  void event(Row::Kind kind, int64_t first, int64_t second = 0) {
    Row row{};
    row.kind = kind, row.start = first, row.end = second;
    rows.push_back(row);
  }

  void count(int64_t bytes) {
    allocated += bytes;
    row_peak = std::max(row_peak, allocated);
    peak = std::max(peak, allocated);
  }

  // Memory was freed; true if it was that of a known storage.
  bool freed(void* data) {
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

  void poll(size_t most) {
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
    for (size_t i = lone.size(); i-- > 0;) {
      if (lone[i].first.use_count() == 0) event(Row::Died, lone[i].second), lone.erase(lone.begin() + i);
    }
  }

  void poll_all() {
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

  void sweep() {  // tensors that are no more: their addresses may serve again
    for (auto entry = known.begin(); entry != known.end();) {
      entry = entry->second.weak.use_count() == 0 ? known.erase(entry) : std::next(entry);
    }
    sweep_at = 2 * known.size() + 256;
  }

  static bool is_plain(const c10::TensorImpl* impl) {
    return impl->has_storage() && !impl->has_symbolic_sizes_strides() && impl->layout() == at::kStrided &&
        !impl->key_set().has_any(kUnusual - DispatchKeySet(DispatchKey::Quantized)) && !impl->key_set().has_any(kTakesOver);
  }

  Known* find(c10::TensorImpl* impl) {
    auto found = known.find(impl);
    if (found == known.end()) return nullptr;
    Known& entry = found->second;
    if (entry.weak.use_count() > 0) {
      if (entry.layout < 0) return &entry;
      if (impl->has_storage() && entry.memory == impl->unsafe_storage().unsafeGetStorageImpl() &&
          entry.offset == impl->storage_offset() && is_layout(entry.layout, impl)) {
        return &entry;
      }
    }
    known.erase(found);  // another tensor at this address, or one that was laid out anew without an op
    return nullptr;
  }

  int32_t number_of(const at::TensorBase& tensor, bool external, Lock& lock, int64_t bytes = -1) {
    auto* impl = tensor.unsafeGetTensorImpl();
    if (Known* entry = find(impl)) return entry->number;
    if (!is_plain(impl)) return number_of_odd(tensor, external, lock);
    auto* memory = impl->unsafe_storage().unsafeGetStorageImpl();
    int32_t storage = storage_of(memory, external, bytes).number, layout = layout_of(impl);
    auto number = static_cast<int32_t>(tensors.size());
    tensors.push_back({storage, layout, impl->storage_offset(), c10::typeMetaToScalarType(impl->dtype()), nullptr});
    remember(tensor, {WeakImpl(tensor.getIntrusivePtr()), memory, impl->storage_offset(), number, storage, layout});
    return number;
  }

  // The numbers of a tensor and its storage: of any one ('r'), of one that was seen ('s'), of one whose memory was ('i').
  std::pair<int32_t, int32_t> numbers_of(const at::TensorBase& tensor, char how, Lock& lock) {
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

  void remember(const at::TensorBase& tensor, Known&& entry) {
    if (known.size() >= sweep_at) sweep();
    known.insert_or_assign(tensor.unsafeGetTensorImpl(), std::move(entry));
  }

  // A tensor with several storages, or with none that it shows: Python says what it is made of.
  int32_t number_of_odd(const at::TensorBase& tensor, bool external, Lock& lock) {
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
      lone.emplace_back(WeakImpl(tensor.getIntrusivePtr()), storage);
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
    remember(tensor, {WeakImpl(tensor.getIntrusivePtr()), nullptr, 0, number, storage, -1});
    return number;
  }

  void forget(const at::TensorBase& tensor) {
    known.erase(tensor.unsafeGetTensorImpl());
    auto* impl = tensor.unsafeGetTensorImpl();
    if (impl->has_storage() && impl->layout() == at::kStrided) note_size(impl->unsafe_storage().unsafeGetStorageImpl());
  }

  void note_size(c10::StorageImpl* memory) {
    auto entry = live.find(memory);
    if (entry == live.end() || entry->second.weak.use_count() == 0) return;
    event(Row::Resized, entry->second.number, static_cast<int64_t>(memory->nbytes()));
    if (entry->second.data != data_of(memory)) watch_end(memory, entry->second);
  }

  // -- arguments and results -> tokens; with the mutex --

  void encode(const IValue& value, Frame& frame, bool external, Lock& lock, int64_t bytes = -1) {
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
        put(kTensor, number_of(tensor, external, lock, bytes));
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
      keep(kOpaque, IValue(value.tagKind()));
    } else {
      keep(kValue, value);
    }
  }

  static bool holds_tensors(const IValue& value) {
    if (value.isTensorList() || value.isOptionalTensorList()) return true;
    if (value.isIntList() || value.isDoubleList() || value.isBoolList() || value.isSymIntList()) return false;
    auto items = value.toListRef();
    return !items.empty() && (items[0].isTensor() || (items[0].isList() && holds_tensors(items[0])));
  }

  static IValue number_in(const at::Tensor& tensor) {
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

  // -- callbacks --

  static bool is_stale(Local& me, uint64_t generation) {
    if (me.attached) return me.attached != generation;
    if (me.seen != generation) me.seen = generation, me.depth = 0, me.recorded = -1;
    return false;
  }

  void enter(const at::RecordFunction& fn) {
    Local& me = local();
    if (looking_away || me.busy || is_stale(me, generation) || me.paused) return;
    if (fn.scope() == at::RecordScope::USER_SCOPE) return enter_step(fn, me);
    auto tls = c10::impl::tls_local_dispatch_key_set();
    if (tls.excluded_.has(DispatchKey::Python)) return;  // hidden from dispatch modes, so from us
    if (me.recorded >= 0 && (!me.frames[me.recorded].autograd || tls.excluded_.has_any(kAutograd))) return;
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
    frame.composite = me.depth > 1 ? me.frames[me.depth - 2].composite : nullptr;
    if (is_composite && !frame.composite) frame.composite = op;
    if (is_composite || effective.has_any(kPython) || autocast_takes(op, effective)) {
      frame.kind = Frame::Transparent;
      return;
    }
    frame.kind = Frame::Recorded;
    frame.autograd = op->has_autograd && effective.has_any(kAutograd);
    frame.below = std::exchange(me.recorded, me.depth - 1);
    frame.uncaught = std::uncaught_exceptions();
    Lock lock(mutex);
    frame.plan = plan_of(me, op, lock);
    if (frame.plan->number < 0) return;  // no part of the program
    lock.unlock();
    Row& row = frame.row;
    row = Row{};
    row.op = op, row.plan = frame.plan, row.composite = frame.composite;
    row.needs = grad && needs, row.grad = grad;
    note_place(me, frame, grad);
    row.given = static_cast<uint8_t>(op->positional);
    while (row.given > 0 && is_standard(inputs[row.given - 1], op->arguments[row.given - 1].standard)) --row.given;
    for (size_t i = op->positional; i < inputs.size(); ++i) {
      if (!is_standard(inputs[i], op->arguments[i].standard)) row.present |= 1ull << (i - op->positional);
    }
    lock.lock();
    aside ? poll_all() : poll(kPolledPerOp);
    if (frame.below >= 0) has_run(me.frames[frame.below], inputs, lock);
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (is_there(row, i)) encode(inputs[i], frame, true, lock);
    }
    if (row.needs && frame.plan->writes) note_views(frame, inputs);
    row_peak = allocated;
    lock.unlock();
    keep_quiet();
    if (op->changes_layout && !inputs.empty() && inputs[0].isTensor()) frame.relaid.push_back(inputs[0].toTensor());
    for (size_t i = op->positional; i < inputs.size(); ++i) {  // out=
      if (op->arguments[i].written) each_tensor(inputs[i], [&](const at::Tensor& t) { frame.relaid.push_back(t); });
    }
    if (guard) protect(me, frame, inputs);
    if (frame.plan->wants || before) frame.inputs.assign(inputs.begin(), inputs.end());
    if (before) tell_before(me, frame);
    row.start = now();
  }

  void leave(const at::RecordFunction& fn) {
    Local& me = local();
    int depth = me.depth;
    while (depth > 0 && me.frames[depth - 1].fn != &fn) --depth;
    if (depth == 0 || is_stale(me, generation)) return;
    me.depth = depth - 1;
    Frame& frame = me.frames[me.depth];
    if (frame.kind == Frame::Step) return leave_step(me, frame);
    if (frame.kind != Frame::Recorded) return;
    me.recorded = frame.below;
    if (frame.plan->number < 0) return;
    Row& row = frame.row;
    row.end = now();
    if (!row.in_backward || row.grad) row.next_nr = at::sequence_number::peek() - 2 * frame.writes_view;
    if (row.needs && frame.writes_view) row.needs = 2;
    bool raised = std::uncaught_exceptions() > frame.uncaught;
    Lock lock(mutex);
    relay(frame, lock);
    if (raised && frame.row_at < 0) {
      failures.push_back(row);
      failed_in = frame.innermost, failed_at = frame.innermost_instruction;
    } else {
      if (raised) for (int32_t number : frame.made) frame.tokens.push_back(number * 8 + kTensor);
      for (const IValue& value : fn.outputs()) encode(value, frame, false, lock, row.op->promises ? 0 : -1);
      ++ops;
      if (told) note_number(at::sequence_number::peek() - 2 * frame.writes_view - 1, row.grad);
      if (frame.plan->wants && !raised) {
        lock.unlock();
        if (int why = reasons(frame, fn.outputs())) tell(me, frame, why, fn.outputs());
        lock.lock();
      }
      row.tokens = tokens.size(), row.values = values.size();
      row.token_count = static_cast<uint32_t>(frame.tokens.size());
      row.allocated = allocated, row.peak = row_peak;
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

  Frame& push(const at::RecordFunction& fn, Local& me) {
    if (me.depth == static_cast<int>(me.frames.size())) me.frames.emplace_back();
    Frame& frame = me.frames[me.depth++];
    frame.fn = &fn;
    frame.writes_view = false;
    frame.row_at = -1;
    frame.made.clear();
    frame.tokens.clear();
    frame.values.clear();
    frame.relaid.clear();
    frame.inputs.clear();
    return frame;
  }

  // Hooks on what an op saves for backward run inside of it. If one takes a tensor that nobody has made, the op has made it:
  // its row comes first, though the rest of it is only known when the op ends. An exception in a hook, as that by which a
  // checkpoint stops recomputing, is none of the op's.
  void has_run(Frame& outer, c10::ArrayRef<const IValue> inputs, Lock& lock) {
    for (const IValue& value : inputs) {
      each_tensor(value, [&](const at::Tensor& tensor) {
        auto* impl = tensor.unsafeGetTensorImpl();
        if (!is_plain(impl) || impl->is_wrapped_number() || find(impl)) return;
        if (live.count(impl->unsafe_storage().unsafeGetStorageImpl())) return;
        outer.made.push_back(number_of(tensor, false, lock));
        if (outer.row_at >= 0) return;
        outer.row_at = first_row + static_cast<int64_t>(rows.size());
        event(Row::Pending, 0);
      });
    }
  }

  static bool is_there(const Row& row, size_t argument) {
    size_t positional = row.op->positional;
    return argument < positional ? argument < row.given : (row.present >> (argument - positional)) & 1;
  }

  template <typename Function>
  static void each_tensor(const IValue& value, const Function& function) {
    if (value.isTensor()) {
      if (value.toTensor().defined()) function(value.toTensor());
    } else if (value.isList() && holds_tensors(value)) {
      for (const IValue& item : value.toListRef()) each_tensor(item, function);
    }
  }

  // The kinds of the tensors that a call takes, and whether one requires a gradient.
  static void look_at(const IValue& value, DispatchKeySet& keys, bool& needs, bool keyword_only) {
    each_tensor(value, [&](const at::Tensor& tensor) {
      keys = keys | tensor.key_set();
      if (!keyword_only || !value.isTensor()) needs = needs || tensor.requires_grad();
    });
  }

  // True if an operator is only a way to call others, for tensors of these kinds.
  static bool composite(const Operator* op, DispatchKeySet keys) {
    if (!keys.has_any(kUnusual)) return op->composite;
    auto backend = c10::highestPriorityBackendTypeId(keys);
    bool nested = keys.has_any(DispatchKeySet(DispatchKey::NestedTensor)) &&
        op->handle.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutogradNestedTensor);
    return (op->composite || nested) && !op->handle.hasKernelForDispatchKey(backend);
  }

  static bool autocast_takes(const Operator* op, DispatchKeySet effective) {
    auto keys = effective & c10::autocast_dispatch_keyset;
    return !keys.empty() && op->handle.hasKernelForDispatchKey(keys.highestPriorityTypeId());
  }

  // Autograd makes two more nodes just after a write to a view: CopySlices for the whole, and a new one for the view.
  static void note_views(Frame& frame, c10::ArrayRef<const IValue> inputs) {
    for (int64_t target : frame.plan->targets) {
      each_tensor(inputs[target], [&](const at::Tensor& tensor) { frame.writes_view |= tensor.is_view(); });
    }
  }

  void relay(Frame& frame, Lock& lock) {
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

  bool has_sizes(int32_t id, const c10::TensorImpl* impl) const {
    const int64_t* at = &layout_pool[layouts[id].first];
    auto sizes = impl->sizes();
    return at[0] == static_cast<int64_t>(sizes.size()) && std::equal(sizes.begin(), sizes.end(), at + 1);
  }

  // The step of an optimizer: an exception that leaves it must not leave its call open.
  void enter_step(const at::RecordFunction& fn, Local& me) {
    if (std::strncmp(fn.name(), "Optimizer.step#", 15) != 0) return;
    Frame& frame = push(fn, me);
    frame.kind = Frame::Step;
    frame.composite = nullptr;
    Cell* here = cell_of(me);
    frame.row.call = static_cast<int32_t>(here->call), frame.row.code = here->code;
    frame.row.instruction = here->instruction;
  }

  void leave_step(Local& me, Frame& frame) {
    Cell* here = cell_of(me);
    if (here->call == frame.row.call && here->code == frame.row.code) return;
    Gil gil;
    PyObject* code = reinterpret_cast<PyObject*>(frame.row.code);
    here->call = frame.row.call;
    Ref old(here->line);
    here->line = code ? Py_BuildValue("(Oi)", code, frame.row.instruction) : Py_NewRef(Py_None);
    here->code = frame.row.code, here->instruction = frame.row.instruction;
  }

  Cell* cell_of(Local& me) { return me.attached && me.cell ? me.cell : cell; }

  // -- where it runs --

  void note_place(Local& me, Frame& frame, bool grad) {
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

  int kind_of(Local& me, PyCodeObject* code) {
    if (me.codes_of != generation) me.codes.fill({}), me.codes_of = generation;
    auto& cached = me.codes[(reinterpret_cast<uintptr_t>(code) >> 5) % me.codes.size()];
    if (cached.first == code) return cached.second;
    {
      Lock lock(mutex);
      auto found = codes.find(code);
      if (found != codes.end()) return cached = {code, found->second}, found->second;
    }
    Gil gil;
    int kind = keep_code(code);
    return cached = {code, kind}, kind;
  }

  // With the GIL: from now on the code stays, and so its address is its own.
  int keep_code(PyCodeObject* code) {
    {
      Lock lock(mutex);
      auto found = codes.find(code);
      if (found != codes.end()) return found->second;
    }
    Ref kind(PyObject_CallOneArg(classify, reinterpret_cast<PyObject*>(code)));
    if (!kind) note_error();
    int number = kind ? static_cast<int>(PyLong_AsLong(kind)) : kSkip;
    Lock lock(mutex);
    if (codes.emplace(code, number).second) Py_INCREF(code);
    return number;
  }

  void note_error() {  // with the GIL: Python raises it when the recording ends
    if (PyErr_ExceptionMatches(PyExc_KeyboardInterrupt)) PyErr_SetInterrupt();  // it is the program's
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    Py_XDECREF(type);
    Py_XDECREF(trace);
    if (!error) error = Ref(value); else Py_XDECREF(value);
  }

  // -- what Python is asked --

  Plan* plan_of(Local& me, Operator* op, Lock& lock) {
    auto found = plans.find(op);
    if (found != plans.end()) return found->second.get();
    lock.unlock();
    auto plan = described(me, op);
    lock.lock();
    return plans.emplace(op, std::move(plan)).first->second.get();
  }

  std::unique_ptr<Plan> described(Local& me, Operator* op) {
    Gil gil;
    bool was_busy = std::exchange(me.busy, true);
    auto plan = std::make_unique<Plan>();
    Ref answer(PyObject_CallFunction(describe, "ss", op->name.c_str(), op->overload.c_str()));
    PyObject *slots, *others, *keywords, *targets, *hidden, *generators;
    int readable, sliced, has_keywords;
    plan->number = -1;
    if (answer && PyArg_ParseTuple(answer, "LpppOOOOOOLLLi", &plan->number, &readable, &sliced, &has_keywords, &slots,
                                  &others, &keywords, &targets, &hidden, &generators, &plan->required,
                                  &plan->hidden_flag, &plan->result, &plan->wants)) {
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

  static std::vector<int64_t> numbers_in(PyObject* tuple) {
    std::vector<int64_t> numbers;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); ++i) numbers.push_back(PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, i)));
    return numbers;
  }

  // Before an op writes to memory from outside for the first time.
  void protect(Local& me, const Frame& frame, c10::ArrayRef<const IValue> inputs) {
    const Plan& plan = *frame.plan;
    c10::SmallVector<at::Tensor, 4> written;
    {
      Lock lock(mutex);
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

  void call(Local& me, PyObject* function, const Ref& arguments) {
    bool was_busy = std::exchange(me.busy, true);
    Ref result(PyObject_CallObject(function, arguments));
    me.busy = was_busy;
    if (!result) note_error();
  }

  // -- a listener --

  void note_number(int64_t number, bool grad) {  // with the mutex
    for (auto* firsts : {&first_ops[0], &first_ops[1]}) {
      if ((grad || firsts == first_ops) && (firsts->empty() || number > firsts->back().first)) {
        firsts->emplace_back(number, static_cast<int64_t>(ops));
      }
    }
  }

  int reasons(const Frame& frame, const std::vector<IValue>& outputs) {
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
    return why;
  }

  // False also if it cannot be told here: the listener looks again.
  static bool is_finite(const at::Tensor& tensor) {
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

  static bool are_finite(const void* data, size_t count, at::ScalarType type) {
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

  // Infinities and NaN are the numbers whose exponent is all ones.
  template <typename Bits>
  static bool all_finite(const void* data, size_t count, Bits exponent) {
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

  void tell(Local& me, const Frame& frame, int why, const std::vector<IValue>& outputs) {
    Gil gil;
    auto [args, kwargs] = call_of(frame);
    Ref out(result_of(frame, outputs));
    call(me, told, Ref(Py_BuildValue("(LiOOO)", frame.plan->number, why, args.object, kwargs.object, out.object)));
  }

  // Whoever keeps values is told of every op, twice; the second time also if it raised.
  void tell_before(Local& me, const Frame& frame) {
    Gil gil;
    auto [args, kwargs] = call_of(frame);
    call(me, before, Ref(Py_BuildValue("(LOO)", frame.plan->number, args.object, kwargs.object)));
  }

  void tell_after(Local& me, const Frame& frame, bool raised, const std::vector<IValue>& outputs) {
    Gil gil;
    auto [args, kwargs] = call_of(frame);
    Ref out(raised ? Py_NewRef(Py_None) : result_of(frame, outputs));
    PyObject* flag = raised ? Py_True : Py_False;
    call(me, after, Ref(Py_BuildValue("(LOOOO)", frame.plan->number, args.object, kwargs.object, flag, out.object)));
  }

  std::pair<Ref, Ref> call_of(const Frame& frame) {
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
  PyObject* result_of(const Frame& frame, const std::vector<IValue>& outputs) {
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

  // -- rows -> Python; with the GIL --

  PyObject* to_python(const IValue& value, As as) {
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

  PyObject* opaque_named(const std::string& name) { return PyObject_CallFunction(opaque, "s", name.c_str()); }

  template <typename Items, typename Function>
  static PyObject* list_of(const Items& items, const Function& function) {
    PyObject* list = PyList_New(static_cast<Py_ssize_t>(items.size()));
    Py_ssize_t at = 0;
    for (const auto& item : items) PyList_SET_ITEM(list, at++, function(item));
    return list;
  }

  // One argument or result. `numbers` collects tensors, and `place` stands for them, if it is given.
  PyObject* decode(const int64_t*& token, const IValue* kept, As as, PyObject* numbers) {
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

  bool drain(PyObject* list) {
    std::vector<Row> taken;
    std::vector<int64_t> its_tokens;
    std::vector<IValue> its_values;
    std::vector<PyObject*> its_notes;
    {
      Lock lock(mutex);
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

  // -- the structure of a step, without a word of Python --

  // What ran, on which tensors, in which calls; not the value of a number, which may be a learning rate: see step_rows.py.
  uint64_t structure_hash() const {
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

  static void mix_token(uint64_t& hash, const int64_t*& token, const IValue* kept, bool number) {
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

  static void mix_value(uint64_t& hash, const IValue& value, bool number) {
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

  template <typename Add>
  void add_arguments(const Row& row, const Plan& plan, std::vector<PyObject*>& arguments, PyObject* numbers, Add& add) {
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
  void add_results(const Plan& plan, const int64_t* token, const int64_t* end, const IValue* kept, Add& add) {
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
};

// -- memory ---------------------------------------------------------------------------------------------------------------

// torch asks the innermost PROFILER_STATE of a thread whether it wants to hear of allocations. torch.profiler puts itself
// into the same place and takes what it finds there for its own kind: hence the base class, switched off.
struct Listener : torch::profiler::impl::ProfilerStateBase {
  int slot;
  uint64_t generation;
  Listener* outer;

  Listener(int slot, uint64_t generation, Listener* outer)
      : ProfilerStateBase(torch::profiler::impl::ProfilerConfig(torch::profiler::impl::ProfilerState::Disabled)),
        slot(slot), generation(generation), outer(outer) {}
  torch::profiler::impl::ActiveProfilerType profilerType() override { return torch::profiler::impl::ActiveProfilerType::NONE; }
  bool memoryProfilingEnabled() const override { return true; }

  void reportMemoryUsage(void* data, int64_t bytes, size_t total, size_t reserved, c10::Device device) override {
    inside[slot].fetch_add(1);
    Recorder* recorder = slots[slot].load();
    if (recorder && recorder->generation == generation) {
      Lock lock(recorder->mutex);
      bool ours = looking_away || locals[slot].busy;  // what we allocate ourselves does not count
      if (bytes < 0 && recorder->freed(data)) ours = false;
      if (!ours) recorder->count(bytes);
    }
    inside[slot].fetch_sub(1);
    if (outer) outer->reportMemoryUsage(data, bytes, total, reserved, device);
  }

  static c10::DebugInfoBase* top() { return c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE); }
};

// -- callbacks of torch, and threads ------------------------------------------------------------------------------------

// torch's callbacks carry no data, so there is a pair of them for each recording that may run at the same time. torch
// hands them on to the threads of the autograd engine by itself.
template <int K>
std::unique_ptr<at::ObserverContext> enter(const at::RecordFunction& fn) {
  inside[K].fetch_add(1);
  if (Recorder* recorder = slots[K].load()) recorder->enter(fn);
  inside[K].fetch_sub(1);
  return nullptr;
}

template <int K>
void leave(const at::RecordFunction& fn, at::ObserverContext*) {
  inside[K].fetch_add(1);
  if (Recorder* recorder = slots[K].load()) recorder->leave(fn);
  inside[K].fetch_sub(1);
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

void attach(Recorder* recorder, Cell* cell) {
  Local& me = recorder->local();
  for (Frame& frame : me.frames) {
    frame.relaid.clear();
    frame.inputs.clear();
  }
  me.attached = recorder->generation, me.cell = cell, me.depth = me.paused = 0, me.recorded = -1, me.busy = false;
  listen(recorder, me);
  auto made = callback(recorder->slot, std::make_integer_sequence<int, kSlots>());
  made.needsInputs(true).needsOutputs(true).scopes({at::RecordScope::FUNCTION, at::RecordScope::USER_SCOPE});
  me.handle = at::addThreadLocalCallback(made);
}

void detach(Recorder* recorder) {
  Local& me = recorder->local();
  if (me.attached != recorder->generation) return;
  if (is_on(me.handle)) at::removeCallback(me.handle);
  if (is_listener_of(recorder)) c10::ThreadLocalDebugInfo::_pop(c10::DebugInfoKind::PROFILER_STATE);
  if (me.blind) --recorder->aside, me.blind = false;
}

// -- the Python module ----------------------------------------------------------------------------------------------------

struct Core {
  PyObject_HEAD
  Recorder* recorder;
};

Recorder& of(PyObject* self) { return *reinterpret_cast<Core*>(self)->recorder; }

std::array<Ref*, 14> references(Recorder& r) {
  return {&r.describe, &r.classify, &r.odd, &r.structure, &r.opaque, &r.omitted, &r.place,
          &r.events, &r.take_over, &r.guard, &r.told, &r.before, &r.after, &r.error};
}

PyObject* core_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"describe", "classify", "odd", "structure", "opaque", "omitted",
                                "place", "events", "take_over", "guard", "told", "before", "after", nullptr};
  PyObject* given[13];
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOOOOOOOOOOO", const_cast<char**>(names), &given[0], &given[1],
                                   &given[2], &given[3], &given[4], &given[5], &given[6], &given[7], &given[8], &given[9],
                                   &given[10], &given[11], &given[12])) {
    return nullptr;
  }
  auto* self = reinterpret_cast<Core*>(type->tp_alloc(type, 0));
  self->recorder = new Recorder();
  auto all = references(*self->recorder);
  for (int i = 0; i < 13; ++i) {
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
  {
    Lock lock(r.mutex);
    noted.swap(r.noted), r.marks.clear(), r.marked = 0;
    r.rows.clear(), r.tokens.clear(), r.values.clear(), r.storages.clear(), r.known.clear(), r.live.clear();
    r.by_data.clear(), r.polled.clear(), r.lone.clear(), r.failures.clear();
    tensors.swap(r.tensors);
    r.tensors_drained = r.storages_drained = r.ops = 0, r.first_row = 0;
    r.first_ops[0].clear(), r.first_ops[1].clear(), r.told_at = -1;
    r.allocated = r.peak = r.row_peak = 0;
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

void end_recording(Recorder& r) {
  if (r.slot < 0) return;
  detach(&r);
  slots[r.slot].store(nullptr);
  int slot = r.slot;
  Py_BEGIN_ALLOW_THREADS
  while (inside[slot].load() > 0) std::this_thread::yield();
  Py_END_ALLOW_THREADS
}

void core_dealloc(PyObject* self) {
  PyObject_GC_UnTrack(self);
  Recorder& r = of(self);
  if (r.slot >= 0 && slots[r.slot].load() == &r) end_recording(r);
  forget_all(r, true);
  for (auto* items : {&r.shapes, &r.strides}) {
    for (PyObject* item : *items) Py_XDECREF(item);
  }
  PyTypeObject* type = Py_TYPE(self);
  delete &r;
  type->tp_free(self);
  Py_DECREF(type);
}

PyObject* none() { Py_RETURN_NONE; }

PyObject* core_start(PyObject* self, PyObject* cell) {
  Recorder& r = of(self);
  static std::mutex mutex;
  std::lock_guard<std::mutex> lock(mutex);
  for (int slot = 0; slot < kSlots; ++slot) {
    if (slots[slot].load()) continue;
    r.slot = slot, r.order = r.generation = ++generations, r.cell = reinterpret_cast<Cell*>(cell), r.aside = 0, r.deaf = false;
    slots[slot].store(&r);
    attach(&r, r.cell);
    keep_quiet();
    Py_RETURN_TRUE;
  }
  Py_RETURN_FALSE;
}

PyObject* core_stop(PyObject* self, PyObject*) {
  Recorder& r = of(self);
  end_recording(r);
  Lock lock(r.mutex);
  r.poll_all();
  take_from_table(std::exchange(r.entered, {}));
  return none();
}

PyObject* core_attach(PyObject* self, PyObject* cell) {
  Recorder& r = of(self);
  if (r.slot >= 0 && slots[r.slot].load() == &r) attach(&r, reinterpret_cast<Cell*>(cell));
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
  if (r.slot >= 0) r.local().paused += static_cast<int>(PyLong_AsLong(change));
  return none();
}

PyObject* core_drain(PyObject* self, PyObject* list) { return of(self).drain(list) ? none() : nullptr; }

PyObject* core_note(PyObject* self, PyObject* event) {
  Recorder& r = of(self);
  Lock lock(r.mutex);
  r.noted.push_back(Py_NewRef(event));
  r.event(Row::Noted, static_cast<int64_t>(r.noted.size()) - 1);
  return none();
}

PyObject* core_mark(PyObject* self, PyObject*) {
  Recorder& r = of(self);
  Lock lock(r.mutex);
  r.event(Row::Mark, 0);
  return PyLong_FromLongLong(r.marked++);
}

PyObject* core_marks(PyObject* self, PyObject*) {  // positions of all marks that were drained
  return of(self).list_of(of(self).marks, [](int64_t item) { return PyLong_FromLongLong(item); });
}

// (hash of the structure, times of ops, ((ops before it, bytes) of what died), events of Python's, odd tensors); None if
// some of it was drained already.
PyObject* core_summary(PyObject* self, PyObject*) {
  Recorder& r = of(self);
  Lock lock(r.mutex);
  if (r.first_row > 0) return none();
  std::vector<int64_t> times;
  std::vector<std::pair<int64_t, int64_t>> deaths;
  for (const Row& row : r.rows) {
    if (row.kind == Row::Op) times.push_back(row.end - row.start);
    if (row.kind == Row::Died) deaths.emplace_back(times.size(), std::max<int64_t>(r.storages[row.start].bytes, 0));
  }
  uint64_t hash = r.structure_hash();
  Ref freed(PyTuple_New(static_cast<Py_ssize_t>(deaths.size())));
  for (size_t i = 0; i < deaths.size(); ++i) {
    PyTuple_SET_ITEM(freed.object, i, Py_BuildValue("(LL)", deaths[i].first, deaths[i].second));
  }
  Ref odd(PyList_New(0));
  for (const TensorRow& row : r.tensors) {
    if (row.odd) PyList_Append(odd, row.odd);
  }
  PyObject* notes = r.list_of(r.noted, [](PyObject* event) { return Py_NewRef(event); });
  return Py_BuildValue("(Ky#NNN)", hash, reinterpret_cast<const char*>(times.data()),
                       static_cast<Py_ssize_t>(times.size() * sizeof(int64_t)), freed.release(), notes, odd.release());
}

PyObject* core_tensors(PyObject* self, PyObject* list) {
  Recorder& r = of(self);
  std::vector<TensorRow> rows;
  size_t first;
  {
    Lock lock(r.mutex);
    first = r.tensors_drained;
    rows.assign(r.tensors.begin() + first, r.tensors.end());
    r.tensors_drained = r.tensors.size();
    r.shapes.resize(r.layouts.size()), r.strides.resize(r.layouts.size());
    for (size_t id = 0; id < r.layouts.size(); ++id) {
      if (r.shapes[id]) continue;
      const int64_t* at = &r.layout_pool[r.layouts[id].first];
      auto tuple = [&](const int64_t* items) {
        PyObject* made = PyTuple_New(at[0]);
        for (int64_t i = 0; i < at[0]; ++i) PyTuple_SET_ITEM(made, i, PyLong_FromLongLong(items[i]));
        return made;
      };
      r.shapes[id] = tuple(at + 1), r.strides[id] = tuple(at + 1 + at[0]);
    }
  }
  auto add = [&](PyObject* item) { PyList_Append(list, item); Py_DECREF(item); };
  for (size_t i = 0; i < rows.size(); ++i) {
    const TensorRow& row = rows[i];
    add(PyLong_FromSize_t(first + i));
    add(PyLong_FromLong(row.storage));
    add(Py_NewRef(row.layout >= 0 ? r.shapes[row.layout] : row.odd ? PyTuple_GET_ITEM(row.odd, 0) : Py_None));
    add(Py_NewRef(row.layout >= 0 ? r.strides[row.layout] : row.odd ? PyTuple_GET_ITEM(row.odd, 1) : Py_None));
    add(PyLong_FromLongLong(row.offset));
    add(Py_NewRef(reinterpret_cast<PyObject*>(torch::getTHPDtype(row.dtype))));
  }
  return none();
}

PyObject* core_storages(PyObject* self, PyObject* list) {
  Recorder& r = of(self);
  std::vector<StorageRow> rows;
  size_t first;
  {
    Lock lock(r.mutex);
    first = r.storages_drained;
    rows.assign(r.storages.begin() + first, r.storages.end());
    r.storages_drained = r.storages.size();
  }
  auto add = [&](PyObject* item) { PyList_Append(list, item); Py_DECREF(item); };
  for (size_t i = 0; i < rows.size(); ++i) {
    add(PyLong_FromSize_t(first + i));
    add(Py_NewRef(Py_None));
    add(PyLong_FromLongLong(rows[i].bytes));
    add(THPDevice_New(rows[i].device));
  }
  return none();
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
    Lock lock(r.mutex);
    number = r.number_of(tensor, external, lock);
  }
  return PyLong_FromLong(number);
}

PyObject* core_known(PyObject* self, PyObject* address) {  // (number, storage's number) of a tensor that was seen, or None
  Recorder& r = of(self);
  auto tensor = tensor_at(address);
  Lock lock(r.mutex);
  Known* entry = r.find(tensor.unsafeGetTensorImpl());
  return entry ? Py_BuildValue("(ii)", entry->number, entry->storage) : none();
}

PyObject* core_memory(PyObject* self, PyObject* address) {  // (number, came from outside) of a storage, or None
  Recorder& r = of(self);
  Lock lock(r.mutex);
  auto entry = r.live.find(static_cast<c10::StorageImpl*>(PyLong_AsVoidPtr(address)));
  if (entry == r.live.end() || entry->second.weak.use_count() == 0) return none();
  return Py_BuildValue("(iO)", entry->second.number, entry->second.external ? Py_True : Py_False);
}

// [(number, storage, gradient's number, gradient's storage)] of tensors: NativeNumbers.look says what `how` means
PyObject* core_look(PyObject* self, PyObject* args) {
  PyObject* addresses;
  const char* how;
  if (!PyArg_ParseTuple(args, "O!s", &PyList_Type, &addresses, &how)) return nullptr;
  Recorder& r = of(self);
  Ref list(PyList_New(PyList_GET_SIZE(addresses)));
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(addresses); ++i) {
    at::Tensor tensor(tensor_at(PyList_GET_ITEM(addresses, i)));
    at::Tensor gradient = tensor.is_leaf() ? tensor.grad() : at::Tensor();
    if (gradient.defined() && gradient.key_set().has_any(kTakesOver)) return none();
    Lock lock(r.mutex);
    auto [number, storage] = r.numbers_of(tensor, *how, lock);
    auto [second, memory] = gradient.defined() ? r.numbers_of(gradient, *how == 'r' ? 'r' : 'i', lock) : std::pair(-1, -1);
    lock.unlock();
    PyList_SET_ITEM(list.object, i, Py_BuildValue("(iiii)", number, storage, second, memory));
  }
  return list.release();
}

PyObject* core_forget(PyObject* self, PyObject* address) {
  Recorder& r = of(self);
  auto tensor = tensor_at(address);
  Lock lock(r.mutex);
  r.forget(tensor);
  return none();
}

PyObject* core_note_size(PyObject* self, PyObject* address) {
  Recorder& r = of(self);
  Lock lock(r.mutex);
  r.note_size(static_cast<c10::StorageImpl*>(PyLong_AsVoidPtr(address)));
  return none();
}

PyObject* core_leaves(PyObject* self, PyObject*) {  // tensors that have a gradient
  Recorder& r = of(self);
  std::vector<at::Tensor> leaves;
  {
    std::vector<at::Tensor> all;
    Lock lock(r.mutex);
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

PyObject* core_failures(PyObject* self, PyObject*) {  // [(operator, overload, call, code, instruction)], innermost frame
  Recorder& r = of(self);
  std::vector<Row> rows;
  { Lock lock(r.mutex); rows = r.failures; }
  PyObject* list = PyList_New(0);
  for (const Row& row : rows) {
    PyObject* code = row.code ? reinterpret_cast<PyObject*>(row.code) : Py_None;
    PyList_Append(list, Ref(Py_BuildValue("(LiOi)", row.plan->number, row.call, code, row.instruction)));
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
  Lock lock(r.mutex);
  return Py_BuildValue("(nnnL)", r.ops, r.codes.size(), r.layouts.size(), r.deaf ? -1ll : static_cast<long long>(r.peak));
}

PyObject* core_count(PyObject* self, PyObject* grad) {  // an op that the recorder in Python has recorded
  Recorder& r = of(self);
  Lock lock(r.mutex);
  ++r.ops;
  r.note_number(at::sequence_number::peek() - 1, PyObject_IsTrue(grad));
  return none();
}

PyObject* core_live(PyObject* self, PyObject*) {  // the numbers of the storages that are there and came to be meanwhile
  Recorder& r = of(self);
  std::vector<int32_t> numbers;
  {
    Lock lock(r.mutex);
    for (const auto& entry : r.live) {
      if (!entry.second.external && entry.second.weak.use_count() > 0) numbers.push_back(entry.second.number);
    }
  }
  return Recorder::list_of(numbers, [](int32_t number) { return PyLong_FromLong(number); });
}

PyObject* core_ops(PyObject* self, PyObject*) {
  Recorder& r = of(self);
  Lock lock(r.mutex);
  return PyLong_FromSize_t(r.ops);
}

PyObject* core_first_op(PyObject* self, PyObject* args) {  // the first op under a number of autograd's or a later one, or None
  long long number;
  int grad;
  if (!PyArg_ParseTuple(args, "Lp", &number, &grad)) return nullptr;
  Recorder& r = of(self);
  Lock lock(r.mutex);
  const auto& firsts = r.first_ops[grad];
  auto found = std::lower_bound(firsts.begin(), firsts.end(), std::make_pair(int64_t{number}, int64_t{0}));
  return found == firsts.end() ? none() : PyLong_FromLongLong(found->second);
}

PyMethodDef core_methods[] = {
    {"start", core_start, METH_O, nullptr}, {"stop", core_stop, METH_NOARGS, nullptr},
    {"attach", core_attach, METH_O, nullptr}, {"detach", core_detach, METH_NOARGS, nullptr},
    {"place", core_place, METH_NOARGS, nullptr}, {"succeed", core_succeed, METH_O, nullptr},
    {"pause", core_pause, METH_O, nullptr},
    {"drain", core_drain, METH_O, nullptr}, {"note", core_note, METH_O, nullptr},
    {"summary", core_summary, METH_NOARGS, nullptr},
    {"mark", core_mark, METH_NOARGS, nullptr}, {"marks", core_marks, METH_NOARGS, nullptr}, {"tensors", core_tensors, METH_O, nullptr},
    {"storages", core_storages, METH_O, nullptr}, {"number", core_number, METH_VARARGS, nullptr},
    {"known", core_known, METH_O, nullptr}, {"memory", core_memory, METH_O, nullptr},
    {"look", core_look, METH_VARARGS, nullptr},
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

// Cell(core): [call, line]
PyObject* cell_new(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject* core;
  if (!PyArg_ParseTuple(args, "O", &core)) return nullptr;
  auto* self = reinterpret_cast<Cell*>(type->tp_alloc(type, 0));
  self->core = Py_NewRef(core), self->call = -1, self->line = Py_NewRef(Py_None), self->code = nullptr;
  return reinterpret_cast<PyObject*>(self);
}

void cell_dealloc(PyObject* object) {
  auto* self = reinterpret_cast<Cell*>(object);
  PyTypeObject* type = Py_TYPE(object);
  Py_XDECREF(self->line);
  Py_XDECREF(self->core);
  type->tp_free(object);
  Py_DECREF(type);
}

Py_ssize_t cell_length(PyObject*) { return 2; }

PyObject* cell_item(PyObject* object, Py_ssize_t index) {
  auto* self = reinterpret_cast<Cell*>(object);
  if (index == 0) return PyLong_FromLongLong(self->call);
  if (index == 1) return Py_NewRef(self->line);
  return PyErr_SetString(PyExc_IndexError, "a cell has two items"), nullptr;
}

int cell_set(PyObject* object, Py_ssize_t index, PyObject* value) {
  auto* self = reinterpret_cast<Cell*>(object);
  if (!value) return PyErr_SetString(PyExc_TypeError, "a cell keeps its items"), -1;
  if (index == 0) {
    int64_t call = PyLong_AsLongLong(value);
    if (call == -1 && PyErr_Occurred()) return -1;
    self->call = call;
    return 0;
  }
  PyCodeObject* code = nullptr;
  int instruction = 0;
  if (value != Py_None && !PyArg_ParseTuple(value, "O!i", &PyCode_Type, &code, &instruction)) return -1;
  if (code) of(self->core).keep_code(code);
  Ref old(std::exchange(self->line, Py_NewRef(value)));
  self->code = code, self->instruction = instruction;
  return 0;
}

PyObject* cell_get_subscript(PyObject* object, PyObject* key) { return cell_item(object, PyLong_AsSsize_t(key)); }

int cell_set_subscript(PyObject* object, PyObject* key, PyObject* value) {  // cell[0] = ..., cell[:] = call, line
  if (!PySlice_Check(key)) return cell_set(object, PyLong_AsSsize_t(key), value);
  Ref both(value ? PySequence_Tuple(value) : nullptr);
  if (!both || PyTuple_GET_SIZE(both.object) != 2) return PyErr_SetString(PyExc_ValueError, "a cell has two items"), -1;
  if (cell_set(object, 0, PyTuple_GET_ITEM(both.object, 0)) < 0) return -1;
  return cell_set(object, 1, PyTuple_GET_ITEM(both.object, 1));
}

PyType_Slot cell_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(cell_new)}, {Py_tp_dealloc, reinterpret_cast<void*>(cell_dealloc)},
    {Py_sq_length, reinterpret_cast<void*>(cell_length)}, {Py_sq_item, reinterpret_cast<void*>(cell_item)},
    {Py_mp_length, reinterpret_cast<void*>(cell_length)}, {Py_mp_subscript, reinterpret_cast<void*>(cell_get_subscript)},
    {Py_mp_ass_subscript, reinterpret_cast<void*>(cell_set_subscript)}, {0, nullptr}};
PyType_Spec cell_spec = {"_recorder.Cell", sizeof(Cell), 0, Py_TPFLAGS_DEFAULT, cell_slots};

PyObject* look_away(PyObject*, PyObject* count) {  // all recorders of this thread; 0 ends it
  looking_away = static_cast<int>(PyLong_AsLong(count));
  return none();
}

PyObject* is_looking_away(PyObject*, PyObject*) { return PyLong_FromLong(looking_away); }

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

PyObject* clock_ns(PyObject*, PyObject*) { return PyLong_FromLongLong(now()); }

PyObject* line_here(PyObject*, PyObject*) {  // (code, instruction) of the calling frame, as `enter` would read it
  auto* f = top_frame();
  while (f && _PyFrame_IsIncomplete(f)) f = f->previous;
  if (!f) return none();
  return Py_BuildValue("(Oi)", reinterpret_cast<PyObject*>(code_of(f)), instruction_of(f));
}

PyMethodDef functions[] = {
    {"look_away", look_away, METH_O, nullptr}, {"looking_away", is_looking_away, METH_NOARGS, nullptr}, {"step_aside", step_aside, METH_NOARGS, nullptr},
    {"step_back", step_back, METH_NOARGS, nullptr}, {"clock_ns", clock_ns, METH_NOARGS, nullptr},
    {"line_here", line_here, METH_NOARGS, nullptr}, {nullptr, nullptr, 0, nullptr}};

int fill(PyObject* module) {
  Ref core(PyType_FromSpec(&core_spec)), cell(PyType_FromSpec(&cell_spec));
  if (!core || !cell || PyModule_AddObjectRef(module, "Core", core) < 0) return -1;
  if (PyModule_AddObjectRef(module, "Cell", cell) < 0) return -1;
  return PyModule_AddStringConstant(module, "key", TORCHATLAS_KEY);
}

PyModuleDef_Slot module_slots[] = {{Py_mod_exec, reinterpret_cast<void*>(fill)}, {0, nullptr}};
PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_recorder", nullptr, 0, functions, module_slots};

}  // namespace

PyMODINIT_FUNC PyInit__recorder() { return PyModuleDef_Init(&definition); }

// One recording: calls of operators -> rows. Its state, and its methods by subject; the files named there define them,
// `inline` as if they stood here, since most of them run at every op.

namespace {

using Impl = c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
using WeakImpl = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;

constexpr int kSlots = 16;  // recordings at once

struct Known {  // a tensor
  WeakImpl weak;  // null if Python watches the tensor: see `watch`
  c10::StorageImpl* memory;
  int64_t offset;
  int32_t number, storage, layout;
  bool watched = false;
  bool ended() const { return !watched && weak.use_count() == 0; }
};

struct Live {  // a storage
  WeakStorage weak;
  void* data;
  int32_t number;
  bool external, guarded, silent;
};

struct Recorder;

// The mutex of a recorder, held. Weak references that are given up meanwhile are let go of when it no longer is: the last
// one takes what is left of its tensor along, as the value of a batched tensor, and the allocator reports that to us.
struct Lock {
  Recorder& recorder;
  bool held = false;
  explicit Lock(Recorder& r) : recorder(r) { lock(); }
  Lock(const Lock&) = delete;
  ~Lock() { if (held) unlock(); }
  inline void lock();
  inline void unlock();
};

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
  bool allocated;  // memory was given out since it began that no op inside of it asked for
  int below, uncaught;
  int32_t callers;  // the composite operators that are open, with this one if it is composite
  const at::RecordFunction* fn;
  Plan* plan;
  Row row;
  std::vector<int64_t> tokens;
  std::vector<IValue> values;
  const c10::TensorImpl* written;  // what it writes, and
  uint32_t version;                // how often that was written before
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
std::atomic<uint64_t> running[kSlots];  // the generation of what is in the slot, 0 for nothing
std::atomic<int> inside[kSlots];        // threads in a callback that uses what is in the slot

// This thread uses what is in a slot: whoever takes it out waits until no thread does.
struct Inside {
  int slot;
  explicit Inside(int slot) : slot(slot) { inside[slot].fetch_add(1); }
  Inside(const Inside&) = delete;
  ~Inside() { inside[slot].fetch_sub(1); }
};

thread_local Local locals[kSlots];
thread_local int looking_away = 0;
std::atomic<uint64_t> generations{0};

struct Recorder {
  // The Python side, set once
  Ref describe, classify, odd, watcher, structure, opaque, omitted, place, events, take_over, guard, told, before, after, error;
  Cell* cell = nullptr;  // of the thread that began

  std::mutex mutex;

  // Rows
  std::vector<Row> rows;
  int64_t first_row = 0;  // how many were drained before
  std::vector<int64_t> tokens;
  std::vector<IValue> values;
  std::vector<PyObject*> noted;       // events of Python's, until they are drained
  std::vector<int64_t> marks;         // the positions of marks among the rows in Python, as far as they are drained
  int64_t marked = 0;

  // Tensors and storages
  std::vector<TensorRow> tensors;
  std::vector<StorageRow> storages;
  size_t tensors_drained = 0, storages_drained = 0, ops = 0;
  ska::flat_hash_map<c10::TensorImpl*, Known> known;
  std::vector<WeakImpl> given_up;  // see Lock
  ska::flat_hash_map<c10::StorageImpl*, Live> live;
  ska::flat_hash_map<void*, c10::StorageImpl*> by_data;
  std::vector<c10::StorageImpl*> polled;          // whose end no allocator reports
  std::vector<void*> entered;                     // into the table of torch's allocator
  std::vector<std::pair<c10::TensorImpl*, int32_t>> lone;  // tensors that stand for their memory; Python watches them
  size_t poll_at = 0, sweep_at = 256;

  // What was met before
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

  int64_t allocated = 0, peak = 0;  // bytes that the allocator gave out since the recording began: now, and at most
  std::atomic<int> aside{0};  // a profiler listens to the allocator in our place
  std::atomic<bool> deaf{false};  // it did so at some time, so the peak is unknown

  bool abandoned = false;  // in a process that was forked
  int slot = -1;
  uint64_t generation = 0, order = 0;  // `order`: which of several recordings began first
  uint64_t known_codes = 0;            // which recording the code objects in Local::codes belong to

  Local& local() { return locals[slot]; }

  // -- storages: storages.h; all with the mutex
  Live& storage_of(c10::StorageImpl* memory, bool external, int64_t bytes = -1);
  void watch_end(c10::StorageImpl* memory, Live& entry);
  void died(const Live& entry);
  void event(Row::Kind kind, int64_t first, int64_t second = 0);
  void count(int64_t bytes);
  bool freed(void* data);
  void poll(size_t most);
  void poll_all();
  void note_size(c10::StorageImpl* memory);

  // -- tensors: tensors.h; all with the mutex
  int32_t layout_of(const c10::TensorImpl* impl);
  bool is_layout(int32_t id, const c10::TensorImpl* impl) const;
  bool has_sizes(int32_t id, const c10::TensorImpl* impl) const;
  void sweep();
  void give_up(ska::flat_hash_map<c10::TensorImpl*, Known>::iterator entry);
  Known* find(c10::TensorImpl* impl);
  int32_t number_of(const at::TensorBase& tensor, bool external, Lock& lock);
  std::pair<int32_t, int32_t> numbers_of(const at::TensorBase& tensor, char how, Lock& lock);
  void remember(const at::TensorBase& tensor, Known&& entry, Lock& lock);
  bool watch(const at::TensorBase& tensor, Lock& lock);
  void gone(c10::TensorImpl* impl, bool running);
  int32_t number_of_odd(const at::TensorBase& tensor, bool external, Lock& lock);
  void forget(const at::TensorBase& tensor);

  // -- arguments and results: tokens.h; with the mutex
  void encode(const IValue& value, Frame& frame, bool external, Lock& lock);
  uint64_t structure_hash() const;

  // -- calls of operators: calls.h
  void enter(const at::RecordFunction& fn);
  void leave(const at::RecordFunction& fn, Frame& frame);
  void failed(const at::RecordFunction& fn, const char* what);
  Frame& push(const at::RecordFunction& fn, Local& me);
  void has_run(Frame& outer, c10::ArrayRef<const IValue> inputs, Lock& lock);
  void take_place(Frame& frame);
  void relay(Frame& frame, Lock& lock);
  void enter_step(const at::RecordFunction& fn, Local& me);
  void leave_step(Local& me, Frame& frame);
  Cell* cell_of(Local& me);
  void note_place(Local& me, Frame& frame, bool grad);
  int kind_of(Local& me, PyCodeObject* code);
  int keep_code(PyCodeObject* code);

  // -- what Python is asked and told: asking.h
  Plan* plan_of(Local& me, Operator* op, Lock& lock);
  std::unique_ptr<Plan> described(Local& me, Operator* op);
  void protect(Local& me, const Frame& frame, c10::ArrayRef<const IValue> inputs);
  void call(Local& me, PyObject* function, const Ref& arguments);
  void note_error();
  void note_number(int64_t number, bool grad);
  int reasons(Local& me, const Frame& frame, const std::vector<IValue>& outputs);
  void tell(Local& me, const Frame& frame, int why, const std::vector<IValue>& outputs);
  void tell_before(Local& me, const Frame& frame);
  void tell_after(Local& me, const Frame& frame, bool raised, const std::vector<IValue>& outputs);
  std::pair<Ref, Ref> call_of(const Frame& frame);
  PyObject* result_of(const Frame& frame, const std::vector<IValue>& outputs);

  // -- rows -> Python: python_rows.h; with the GIL
  PyObject* to_python(const IValue& value, As as);
  PyObject* opaque_named(const std::string& name);
  PyObject* decode(const int64_t*& token, const IValue* kept, As as, PyObject* numbers);
  template <typename Add>
  void add_arguments(const Row& row, const Plan& plan, std::vector<PyObject*>& arguments, PyObject* numbers, Add& add);
  template <typename Add>
  void add_results(const Plan& plan, const int64_t* token, const int64_t* end, const IValue* kept, Add& add);
  bool drain(PyObject* list);
  void drain_tensors(PyObject* list);
  void drain_storages(PyObject* list);
  PyObject* summary();
};

inline void Lock::lock() { recorder.mutex.lock(), held = true; }

inline void Lock::unlock() {
  std::vector<WeakImpl> given_up;
  given_up.swap(recorder.given_up);
  held = false;
  recorder.mutex.unlock();
}

}  // namespace

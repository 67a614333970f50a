// One op, tensor or storage -> one row of numbers. An op's arguments and results are tokens: a tag in the low three
// bits, and above it the number of a tensor, a small integer, or the place of an IValue that is kept.

namespace {

int64_t now() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

void mix(uint64_t& hash, int64_t item) {
  hash = (hash ^ static_cast<uint64_t>(item)) * 0x9E3779B97F4A7C15ull;
  hash ^= hash >> 29;
}

enum Tag : int64_t { kNone, kTensor, kList, kValue, kInt, kBool, kNumber, kOpaque };  // the low three bits of a token

struct Row {
  // Noted: an event of Python's. Mark: where `rows` are asked for later. Pending: see `has_run`
  enum Kind : uint8_t { Op, Died, Resized, Reshaped, Noted, Mark, Pending } kind;
  uint8_t grad, needs, in_backward, given;
  int32_t call, instruction, callers;  // `callers`: see Callers
  uint64_t present, backward_nr, next_nr;  // `present`: which keyword-only arguments are there
  int64_t start, end;                      // of the other kinds: the two numbers of the event
  Operator* op;
  Plan* plan;
  PyCodeObject* code;
  size_t tokens, values;
  uint32_t token_count;
};

struct TensorRow { int32_t storage, layout; int64_t offset; at::ScalarType dtype; PyObject* odd; };
struct StorageRow { int64_t bytes; c10::Device device; };

inline bool is_there(const Row& row, size_t argument) {
  size_t positional = row.op->positional;
  return argument < positional ? argument < row.given : (row.present >> (argument - positional)) & 1;
}

}  // namespace

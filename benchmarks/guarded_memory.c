/* An allocator for probe_operators.py: a kernel that leaves its tensor ends the process at once.

   Built as a shared library and loaded by LD_PRELOAD. torch takes the memory of CPU tensors from posix_memalign; here
   each such block lies on pages of its own between two unreadable ones. A block does not fill its pages exactly, so a
   run guards one side of it (variable GUARD):

     end    the last byte of a block lies right before an unreadable page (alignment is given up for that)
     begin  its first byte lies right after one

   Addresses are never used twice, so memory that was freed stays unreadable, too. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define PAGE 4096ULL
#define REGION (1ULL << 38) /* addresses, not memory: pages are readable only while a block holds them */
#define LARGEST_BLOCK (1ULL << 33)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char *region;
static uint64_t used;        /* bytes of the region that were given out */
static uint32_t *page_count; /* by the number of a block's first page: its pages; 0 elsewhere */
static int guards_begin;

static void reserve_region(void) {
  const char *side = getenv("GUARD");
  guards_begin = side && !strcmp(side, "begin");
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  page_count = mmap(0, REGION / PAGE * sizeof *page_count, PROT_READ | PROT_WRITE, flags, -1, 0);
  region = mmap(0, REGION, PROT_NONE, flags, -1, 0);
  if (region == MAP_FAILED || page_count == MAP_FAILED) abort();
}

int posix_memalign(void **result, size_t alignment, size_t size) {
  static int (*original)(void **, size_t, size_t);
  if (!original) original = (int (*)(void **, size_t, size_t))dlsym(RTLD_NEXT, "posix_memalign");
  if (size > LARGEST_BLOCK) return ENOMEM;
  if (alignment > PAGE) return original(result, alignment, size); /* never for a tensor */
  uint64_t pages = size ? (size + PAGE - 1) / PAGE : 1;
  pthread_mutex_lock(&lock);
  if (!region) reserve_region();
  if (used + (pages + 2) * PAGE > REGION) abort(); /* not ENOMEM: calls would fail without being probed */
  char *first = region + used + PAGE;
  int failed = mprotect(first, pages * PAGE, PROT_READ | PROT_WRITE); /* over the limit of the child's memory */
  if (!failed) {
    used += (pages + 1) * PAGE;
    page_count[(first - region) / PAGE] = pages;
    *result = guards_begin ? first : first + pages * PAGE - size;
  }
  pthread_mutex_unlock(&lock);
  return failed ? ENOMEM : 0;
}

void free(void *block) {
  static void (*original)(void *);
  char *address = block;
  if (!region || address < region || address > region + REGION) {
    if (!original) original = (void (*)(void *))dlsym(RTLD_NEXT, "free");
    original(block);
    return;
  }
  /* A block of no bytes that ends its page begins at the next one, which is unreadable. */
  uint64_t page = (address - region) / PAGE;
  while (page && !page_count[page]) page--;
  char *first = region + page * PAGE;
  uint64_t bytes = page_count[page] * PAGE;
  page_count[page] = 0;
  madvise(first, bytes, MADV_DONTNEED);
  mprotect(first, bytes, PROT_NONE);
}

/*
 * The agent's hook on Ruby's method events, and the memory it writes to.
 *
 * One object for every Ruby from 2.7 on: ruby.h is not included, the few
 * functions that have not changed since are declared here. Nor is anything
 * linked, so that it loads wherever Ruby runs; libruby and the C library are in
 * the process already. What is in the shared memory stands in docs/agent.md,
 * byte by byte.
 *
 * Whoever maps that memory may lie. So all that a decision here depends on is
 * private (`struct state`, `struct stream`, `struct key`); of the shared memory
 * only tails and numbers of blocks are read back, and checked.
 *
 * The GVL orders all of this: hooks belong to one Ractor, ours to the main one.
 *
 * SPDX-License-Identifier: MIT
 */
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* ------------------------------------------------------------ what Ruby has */

typedef unsigned long VALUE;
typedef unsigned long ID;

/* rb_trace_arg_t, the same from 2.0 to 4.1; what follows data is not read. */
struct trace_arg {
  uint32_t event;
  const char *ec;
  const char *cfp;
  VALUE self;
  ID id; /* of some events; of others it and klass are 0 */
  ID called_id;
  VALUE klass;
  VALUE data;
};

typedef VALUE (*method_function)();
typedef void (*hook_function)(VALUE data, const struct trace_arg *arg);

extern VALUE rb_cObject;
extern VALUE rb_define_module(const char *name);
extern VALUE rb_define_module_under(VALUE outer, const char *name);
extern void rb_define_singleton_method(VALUE object, const char *name,
                                       method_function function, int arity);
extern void rb_add_event_hook2(hook_function function, uint32_t events,
                               VALUE data, int flags);
extern int rb_remove_event_hook_with_data(hook_function function, VALUE data);
extern int rb_frame_method_id_and_class(ID *id, VALUE *owner);
extern VALUE rb_data_object_wrap(VALUE klass, void *data, void (*mark)(void *),
                                 void (*release)(void *));
extern void rb_gc_register_address(VALUE *address);
extern void rb_gc_mark(VALUE object);
extern VALUE rb_thread_current(void);
extern VALUE rb_class_real(VALUE klass);
extern VALUE rb_obj_class(VALUE object);
extern VALUE rb_mod_name(VALUE module);
extern VALUE rb_attr_get(VALUE object, ID name);
extern VALUE rb_class_attached_object(VALUE klass) __attribute__((weak)); /* 3.2 */
extern ID rb_intern(const char *name);
extern ID rb_to_id(VALUE name);
extern VALUE rb_id2sym(ID id);
extern VALUE rb_ary_new(void);
extern VALUE rb_ary_push(VALUE array, VALUE value);
extern VALUE rb_ull2inum(unsigned long long number);
extern unsigned long long rb_num2ull(VALUE number);
extern VALUE rb_str_length(VALUE string);
extern char *rb_string_value_ptr(VALUE *string);
extern VALUE rb_ary_pop(VALUE array);
extern VALUE rb_funcallv(VALUE receiver, ID name, int count, const VALUE *arguments);
extern VALUE rb_obj_is_kind_of(VALUE object, VALUE klass);
extern VALUE rb_tracearg_binding(struct trace_arg *arg);
extern VALUE rb_tracearg_path(struct trace_arg *arg);
extern VALUE rb_tracearg_lineno(struct trace_arg *arg);
extern VALUE rb_protect(VALUE (*body)(VALUE), VALUE data, int *state);
extern VALUE rb_ensure(VALUE (*body)(), VALUE data, VALUE (*end)(), VALUE data_of_end);
extern void rb_jump_tag(int state) __attribute__((noreturn));
extern VALUE rb_errinfo(void);
extern void rb_set_errinfo(VALUE error);
extern void rb_thread_schedule(void);

enum {
  EVENT_CALL = 0x8,
  EVENT_RETURN = 0x10,
  EVENT_C_CALL = 0x20,
  EVENT_C_RETURN = 0x40,
  EVENT_RAISE = 0x80,
  EVENT_FIBER_SWITCH = 0x1000,
  EVENT_NEWOBJ = 0x100000,
  EVENT_GC_ENTER = 0x2000000,
  EVENT_GC_EXIT = 0x4000000,
  HOOK_SAFE = 1,
  HOOK_RAW_ARG = 4,
  TYPE_MASK = 0x1f,
  TYPE_CLASS = 0x2,
  TYPE_MODULE = 0x3,
  TYPE_STRING = 0x5,
  TYPE_IMEMO = 0x1a,
  TYPE_ICLASS = 0x1c,
};

#define FALSE_VALUE ((VALUE)0) /* of every Ruby; nil is not */

struct basic {
  VALUE flags;
  VALUE klass;
};

/* Immediates are below or odd; nil, true, false and undef are below 64. */
static int is_object(VALUE value) { return value >= 64 && (value & 7) == 0; }

static unsigned type_of(VALUE object) {
  return ((const struct basic *)object)->flags & TYPE_MASK;
}

#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)
#define ALWAYS_INLINE static inline __attribute__((always_inline))
#define NEVER_INLINE static __attribute__((noinline))

/* ----------------------------------------------------- what the tracer sees */

enum mode { MODE_EMPTY, MODE_RING, MODE_TABLE, MODE_SLOW, MODE_SITES };

enum flags {
  FLAG_METHODS = 1,
  FLAG_C_CALLS = 2,
  FLAG_GC = 4,
  FLAG_RAISE = 8,
  FLAG_OBJECTS = 16,
  FLAG_SITES = 32,
  FLAG_CPU = 64,
  FLAG_WHOLE = 128,
  FLAG_SELECT = 256,
  FLAG_HISTOGRAMS = 512,
};

enum clock { CLOCK_NS, CLOCK_TSC, CLOCK_CNTVCT };

enum condition {
  CONDITION_NO_OFFSETS = 1,
  CONDITION_METHODS_FULL = 2,
  CONDITION_BLOCKS_FULL = 4,
  CONDITION_STREAMS_FULL = 8,
};

enum kind { KIND_NONE, KIND_RUBY, KIND_C, KIND_GC, KIND_RAISE, KIND_OBJECT };

/* Only in keys: methods of a class or module that it has from another one. */
enum { KIND_INHERITED = 5, KIND_RUBY_INHERITED = KIND_RUBY + KIND_INHERITED };

enum record_kind {
  RECORD_ENTRY = 1,
  RECORD_RETURN,
  RECORD_C_ENTRY,
  RECORD_C_RETURN,
  RECORD_LOST,
  RECORD_GC_BEGIN,
  RECORD_GC_END,
  RECORD_RAISE,
  RECORD_OBJECT,
  RECORD_CPU,
  RECORD_STACK,
  RECORD_PLACE,
  RECORD_THREAD,
  RECORD_TEXT,
};

enum { RECORD_ORPHAN = 1, RECORD_VALUES = 2 };
enum { TEXT_BYTES = 14, TEXT_GOES_ON = 16 }; /* of a TEXT record's flags */

struct record {
  uint64_t time;
  uint32_t method;
  uint16_t depth;
  uint8_t kind;
  uint8_t flags;
};

struct shared_stream {
  uint64_t published;
  uint64_t written;
  uint64_t dropped;
  uint64_t ec;
  uint64_t thread;
  uint32_t tid;
  uint32_t stack;
  uint64_t unused[2];
};

struct shared_method {
  uint64_t owner;
  uint64_t id;
  uint32_t kind;
  uint32_t selected;
  uint64_t unused[5];
  uint64_t entries; /* a cache line of what changes */
  uint64_t calls;
  uint64_t total;
  uint64_t self;
  uint64_t sum;
  uint64_t max;
  uint64_t unused2[2];
};

enum { BLOCK_COUNTERS = 64, BLOCKS_A_METHOD = 528 };

struct header {
  char magic[8];
  uint32_t version;
  uint32_t header_size;
  uint64_t size;
  uint32_t pid;
  uint32_t mode;
  uint32_t flags;
  uint32_t clock;
  uint64_t mult;
  uint64_t ticks0, ns0, ticks1, ns1;
  uint64_t methods_offset;
  uint32_t methods_capacity, method_size;
  uint64_t directory_offset;
  uint32_t directory_entries, directory_entry_size;
  uint64_t blocks_offset;
  uint32_t blocks_capacity, block_size;
  uint64_t streams_offset;
  uint32_t streams_capacity, stream_size;
  uint64_t rings_offset;
  uint32_t ring_records, record_size;
  uint64_t threshold_ns;
  uint64_t unused[3];
  uint32_t state; /* at 192, what changes */
  uint32_t methods;
  uint32_t blocks;
  uint32_t streams;
  uint32_t conditions;
  uint32_t unused2;
  uint64_t no_stream;
  uint64_t no_method;
  uint64_t too_deep;
  uint64_t orphans;
  uint64_t abandoned;
  uint64_t no_block;
  uint64_t no_values;
};

enum { HEADER_SIZE = 4096, STATE_ARMED = 1, STATE_DISARMED = 2, LINE = 64 };

_Static_assert(sizeof(struct record) == 16, "as docs/agent.md has it");
_Static_assert(sizeof(struct shared_stream) == 64, "as docs/agent.md has it");
_Static_assert(sizeof(struct shared_method) == 128, "as docs/agent.md has it");
_Static_assert(offsetof(struct shared_method, entries) == 64, "as docs/agent.md has it");
_Static_assert(offsetof(struct header, methods_offset) == 80, "as docs/agent.md has it");
_Static_assert(offsetof(struct header, threshold_ns) == 160, "as docs/agent.md has it");
_Static_assert(offsetof(struct header, state) == 192, "as docs/agent.md has it");
_Static_assert(offsetof(struct header, no_values) == 264, "as docs/agent.md has it");

/* ---------------------------------------------------------- what is private */

/* As agent.rb packs it; selectors follow. */
struct config {
  uint32_t mode, flags, clock, pid;
  uint64_t mult, ticks0, ns0, ticks1, ns1, threshold_ns, limit_ns;
  uint32_t max_methods, max_blocks, max_streams, ring_records;
  uint32_t has_offsets, cfp_ep, me_owner, me_def;
  uint32_t def_original_id, ment_imemo, svar_imemo, local_flag;
  uint32_t ec_thread, selectors;
};

struct selector {
  uint16_t kind;         /* 0 both, 1 instance, 2 singleton */
  uint16_t wants;        /* enum wants: what its expressions need; 0: it has none */
  uint32_t owner_length; /* 0: any */
  ID id;                 /* 0: any */
  char owner[];          /* padded to 8 */
};

enum wants { WANTS_SELF = 1, WANTS_BINDING = 2, WANTS_PLACE = 4 };

/* A selector's expressions; programs are numbered as selectors are, from 1. */
struct program {
  uint8_t wants;
  uint8_t late; /* how often in a row they took too long; no more once it is MAX_LATE */
};

enum { MAX_SELECTORS = 1024, MAX_LATE = 3 };

/* A call that has not returned. */
struct call {
  uint64_t key; /* orders frames: a callee's is lower than its caller's */
  uint64_t start;
  uint64_t child; /* ticks in calls below */
  uint64_t cpu;
  uint64_t at; /* what to rewind the ring to */
  uint32_t lost, dropped;
  uint32_t method;
  uint32_t is_c;
};

enum { MAX_DEPTH = 16384 };

struct stream {
  const char *ec;
  const char *vm_stack; /* with ec: a dead fiber's place may be another's */
  struct call *calls;
  uint32_t *active; /* by method: how many of calls are of it */
  uint32_t depth;
  uint32_t stack;
  uint64_t stamp; /* when it was last switched to */
  VALUE thread;
  int ignored;
  struct record *ring;
  uint64_t written, published, tail;
  uint32_t lost;    /* since the last LOST record */
  uint64_t dropped; /* in all */
  struct shared_stream *shared;
  const uint64_t *tail_of_reader;
};

struct key {
  VALUE owner;
  uint64_t id_and_kind; /* 0: free */
  uint32_t method;
  uint8_t selected;
  uint8_t of_class; /* a method of classes or modules: who it is called on counts */
  uint16_t program; /* 0: none */
};

/* A method by its number; definer: as owner, but where it is defined. */
struct known {
  VALUE owner;
  uint64_t id_and_kind;
  VALUE definer;
};

struct state {
  struct config config;
  char *data; /* the shared memory */
  char *control;
  size_t data_size, control_size;
  struct header *header;
  struct shared_method *methods;
  uint32_t *directory;
  uint64_t (*blocks)[BLOCK_COUNTERS];
  struct stream *streams;
  struct key *keys;    /* found by hash */
  struct known *known; /* by number of the method */
  struct selector *selectors;
  size_t streams_size, keys_size, known_size, selectors_size;
  uint64_t ring_mask;
  unsigned keys_shift;
  uint32_t methods_used, blocks_used, streams_used;
  uint64_t switches, looks;
  uint64_t threshold;
  uint64_t gc_start;
  uint32_t stacks;
  uint32_t to_verify;
  uint32_t gc_method;
  int has_offsets, sites, selecting, evaluating;
  struct program programs[MAX_SELECTORS + 1];
  struct stream *current;
  hook_function hook;
  int data_fd, control_fd;
};

static struct state state;

/*
 * On a page of its own, which a fork wipes: in a child that nobody told Ruby
 * about, the hook is still there and the memory is not.
 */
static struct {
  uint64_t armed;
} *alive;

/* Threads of the agent itself, whose calls are no one's business. */
enum { MAX_OWN_THREADS = 64 };
static VALUE own_threads[MAX_OWN_THREADS];
static VALUE marker; /* marks the classes that were seen */
static ID attached_name;
static uint64_t arming; /* counts; what was under way may be of an earlier one */

/* -------------------------------------------------------------------- clock */

static uint64_t monotonic_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

NEVER_INLINE uint64_t thread_cpu_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

ALWAYS_INLINE uint64_t ticks_of(uint32_t clock) {
#if defined(__x86_64__)
  if (likely(clock == CLOCK_TSC))
    return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
  if (likely(clock == CLOCK_CNTVCT)) {
    uint64_t now;
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(now));
    return now;
  }
#endif
  return monotonic_ns();
}

ALWAYS_INLINE uint64_t ticks(void) { return ticks_of(state.config.clock); }

/* Counters of two processors may differ by a few ticks. */
ALWAYS_INLINE uint64_t ticks_since(uint64_t start, uint64_t now) {
  return likely(now > start) ? now - start : 0;
}

ALWAYS_INLINE uint64_t ns_of(uint64_t ticks) {
  return (uint64_t)(((unsigned __int128)ticks * state.config.mult) >> 32);
}

/* ------------------------------------------------------------- static probes */

#if defined(__x86_64__)
#define ADDRESS ".8byte"
#define NOP "nop"
#elif defined(__aarch64__)
#define ADDRESS ".8byte"
#define NOP "nop"
#else
#error "the agent knows x86-64 and aarch64"
#endif

__asm__(".pushsection .stapsdt.base,\"aG\",\"progbits\",.stapsdt.base,comdat\n"
        ".weak _.stapsdt.base\n.hidden _.stapsdt.base\n"
        "_.stapsdt.base: .space 1\n.size _.stapsdt.base, 1\n.popsection\n");

/* An operand's entry in the rbtrace note: an Integer argument with a name. */
#define NAMED(length, name) ".byte 2 + " #length ", 0, 1\n.ascii \"" name "\"\n"

/*
 * A probe of provider rbtrace: the note every tool reads, and the one that
 * names its operands (docs/probes.md), which is written first.
 */
#define SITE(name, count, names, places, ...)                                  \
  __asm__ volatile("990: " NOP "\n"                                            \
                   ".pushsection .note.rbtrace,\"\",\"note\"\n"                \
                   ".balign 4\n.4byte 8, 9982f - 9981f, 1\n"                   \
                   ".asciz \"rbtrace\"\n"                                      \
                   "9981: " ADDRESS " 990b\n.2byte 1\n.byte 0, " #count "\n"   \
                   names "9982: .balign 4\n.popsection\n"                      \
                   ".pushsection .note.stapsdt,\"\",\"note\"\n"                \
                   ".balign 4\n.4byte 8, 992f - 991f, 3\n"                     \
                   ".asciz \"stapsdt\"\n"                                      \
                   "991: " ADDRESS " 990b, _.stapsdt.base, 0\n"                \
                   ".asciz \"rbtrace\"\n.asciz \"" name "\"\n"                 \
                   ".asciz \"" places "\"\n"                                   \
                   "992: .balign 4\n.popsection\n"                             \
                   :                                                           \
                   : __VA_ARGS__)

#define FRAME_NAMES NAMED(5, "owner") NAMED(2, "id") NAMED(2, "ec") NAMED(5, "depth")
#define FRAME_PLACES "8@%0 8@%1 8@%2 8@%3"
#define FRAME_VALUES "r"(owner), "r"(id), "r"(ec), "r"(depth)

NEVER_INLINE void site_entry(uint64_t owner, uint64_t id, const char *ec, uint64_t depth) {
  SITE("method__entry", 4, FRAME_NAMES, FRAME_PLACES, FRAME_VALUES);
}

NEVER_INLINE void site_c_entry(uint64_t owner, uint64_t id, const char *ec, uint64_t depth) {
  SITE("cmethod__entry", 4, FRAME_NAMES, FRAME_PLACES, FRAME_VALUES);
}

NEVER_INLINE void site_return(uint64_t owner, uint64_t id, const char *ec,
                              uint64_t depth, int64_t duration) {
  SITE("method__return", 5, FRAME_NAMES NAMED(11, "duration_ns"),
       FRAME_PLACES " -8@%4", FRAME_VALUES, "r"(duration));
}

NEVER_INLINE void site_c_return(uint64_t owner, uint64_t id, const char *ec,
                                uint64_t depth, int64_t duration) {
  SITE("cmethod__return", 5, FRAME_NAMES NAMED(11, "duration_ns"),
       FRAME_PLACES " -8@%4", FRAME_VALUES, "r"(duration));
}

NEVER_INLINE void site_gc_begin(const char *ec) {
  SITE("gc__begin", 1, NAMED(2, "ec"), "8@%0", "r"(ec));
}

NEVER_INLINE void site_gc_end(const char *ec, int64_t duration) {
  SITE("gc__end", 2, NAMED(2, "ec") NAMED(11, "duration_ns"), "8@%0 -8@%1",
       "r"(ec), "r"(duration));
}

NEVER_INLINE void site_raise(uint64_t owner, uint64_t exception, const char *ec) {
  SITE("raise", 3, NAMED(5, "owner") NAMED(9, "exception") NAMED(2, "ec"),
       "8@%0 8@%1 8@%2", "r"(owner), "r"(exception), "r"(ec));
}

NEVER_INLINE void site_object(uint64_t owner, uint64_t object, const char *ec) {
  SITE("object", 3, NAMED(5, "owner") NAMED(6, "object") NAMED(2, "ec"),
       "8@%0 8@%1 8@%2", "r"(owner), "r"(object), "r"(ec));
}

/* --------------------------------------------------------------------- rings */

#define STORE(place, value) __atomic_store_n(&(place), (value), __ATOMIC_RELAXED)
#define RELEASE(place, value) __atomic_store_n(&(place), (value), __ATOMIC_RELEASE)

/* One writer: an add that is a load and a store, each whole. */
#define ADD(place, amount) STORE(place, (place) + (amount))

ALWAYS_INLINE int has_room(struct stream *s, uint64_t records) {
  if (likely(s->written + records - s->tail <= state.ring_mask + 1))
    return 1;
  uint64_t tail = __atomic_load_n(s->tail_of_reader, __ATOMIC_ACQUIRE);
  if (tail > s->tail && tail <= s->published)
    s->tail = tail;
  return s->written + records - s->tail <= state.ring_mask + 1;
}

ALWAYS_INLINE void append(struct stream *s, uint64_t time, uint32_t method,
                          uint32_t depth, uint8_t kind, uint8_t flags) {
  struct record *record = &s->ring[s->written++ & state.ring_mask];
  uint64_t rest = (uint64_t)method |
                  (uint64_t)(depth < 0xffff ? depth : 0xffff) << 32 |
                  (uint64_t)kind << 48 | (uint64_t)flags << 56;
  record->time = time;
  __builtin_memcpy(&record->method, &rest, sizeof(rest));
}

ALWAYS_INLINE void publish(struct stream *s) {
  s->published = s->written;
  RELEASE(s->shared->published, s->written);
}

NEVER_INLINE void drop(struct stream *s, uint32_t records) {
  s->lost += s->lost <= UINT32_MAX - records ? records : 0;
  s->dropped += records;
  if (state.config.mode == MODE_RING)
    STORE(s->shared->dropped, s->dropped);
}

/* Put a record, behind one that tells of the loss before it. */
ALWAYS_INLINE void put(struct stream *s, uint64_t time, uint32_t method,
                       uint32_t depth, uint8_t kind, uint8_t flags) {
  if (unlikely(s->lost)) {
    if (!has_room(s, 2)) {
      drop(s, 1);
      return;
    }
    append(s, time, s->lost, depth, RECORD_LOST, 0);
    s->lost = 0;
  } else if (unlikely(!has_room(s, 1))) {
    drop(s, 1);
    return;
  }
  append(s, time, method, depth, kind, flags);
}

/* ------------------------------------------------------------------- streams */

static void *map_private(size_t size) {
  void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return memory == MAP_FAILED ? NULL : memory;
}

static size_t calls_size(void) { return MAX_DEPTH * sizeof(struct call); }

static size_t active_size(void) {
  return state.config.max_methods * sizeof(uint32_t);
}

static void abandon(struct stream *s) {
  const struct call *call = &s->calls[--s->depth];
  if (state.config.mode == MODE_TABLE)
    s->active[call->method]--;
  ADD(state.header->abandoned, 1);
}

/* As after the last record before it, in the order of a reader's needs. */
static void tell_stack(struct stream *s) {
  const char *thread = NULL;
  if (state.config.ec_thread)
    thread = *(const char *const *)(s->ec + state.config.ec_thread);
  uint32_t tid = (uint32_t)syscall(SYS_gettid);
  s->stack = ++state.stacks;
  STORE(s->shared->ec, (uint64_t)s->ec);
  STORE(s->shared->thread, (uint64_t)thread);
  STORE(s->shared->tid, tid);
  STORE(s->shared->stack, s->stack);
  if (!s->ring)
    return;
  uint64_t now = ticks();
  if (!has_room(s, 3 + (s->lost > 0))) {
    /* What follows has no place: better none of it than another's. */
    drop(s, 3);
    return;
  }
  if (s->lost) {
    append(s, now, s->lost, 0, RECORD_LOST, 0);
    s->lost = 0;
  }
  append(s, now, s->stack, 0, RECORD_STACK, 0);
  append(s, (uint64_t)s->ec, tid, 0, RECORD_PLACE, 0);
  append(s, (uint64_t)thread, 0, 0, RECORD_THREAD, 0);
  publish(s);
}

static int is_own_thread(VALUE thread) {
  for (int i = 0; i < MAX_OWN_THREADS; i++)
    if (own_threads[i] == thread)
      return 1;
  return 0;
}

static void give_to(struct stream *s, const char *ec, const char *vm_stack) {
  while (s->depth)
    abandon(s);
  if (s->ring && s->written != s->published)
    s->written = s->published; /* of a tree that nobody will finish */
  s->ec = ec;
  s->vm_stack = vm_stack;
  s->thread = rb_thread_current();
  s->ignored = is_own_thread(s->thread);
  tell_stack(s);
}

static struct stream *new_stream(void) {
  struct stream *s = &state.streams[state.streams_used];
  char *memory = map_private(calls_size() + active_size());
  if (!memory)
    return NULL;
  s->calls = (struct call *)memory;
  s->active = (uint32_t *)(memory + calls_size());
  RELEASE(state.header->streams, ++state.streams_used);
  return s;
}

/* The one that was idle longest, if possible one whose calls all returned. */
static struct stream *oldest_stream(void) {
  struct stream *found = NULL;
  for (uint32_t i = 0; i < state.streams_used; i++) {
    struct stream *s = &state.streams[i];
    if (!found || (s->depth == 0) > (found->depth == 0) ||
        ((s->depth == 0) == (found->depth == 0) && s->stamp < found->stamp))
      found = s;
  }
  return found;
}

enum { FUTEX_CMP_REQUEUE_PRIVATE = 4 | 128, MOST_LOOKS = 32 };

/*
 * Has its stack ended? Ruby then clears the place where vm_stack was; later it is
 * somebody else's, or nobody's, so that it is the kernel that compares: it takes an
 * address that is none, and asks no right that a thread could lack. One that is live has
 * the same vm_stack all the time.
 */
static int has_ended(const struct stream *s) {
  static uint32_t unused;
  int before = errno;
  long found = syscall(SYS_futex, s->ec, FUTEX_CMP_REQUEUE_PRIVATE, 0L, 0L, &unused,
                       (uint32_t)(uintptr_t)s->vm_stack);
  int ended = found < 0 && (errno == EAGAIN || errno == EFAULT);
  errno = before;
  return ended;
}

/*
 * One whose stack has ended and whose ring has so much room: the pages it has are paid
 * for by the program. Those that are live keep theirs, and their number.
 */
static struct stream *ended_stream(uint64_t room) {
  for (uint32_t i = 0; i < MOST_LOOKS && i < state.streams_used; i++) {
    struct stream *s = &state.streams[state.looks++ % state.streams_used];
    if ((!s->ring || has_room(s, room)) && has_ended(s))
      return s;
  }
  return NULL;
}

static int has_same_frames(const struct stream *s, const struct trace_arg *arg);

NEVER_INLINE struct stream *switch_stream(const struct trace_arg *arg, const char *vm_stack) {
  const char *ec = arg->ec;
  struct stream *s = NULL;
  for (uint32_t i = 0; i < state.streams_used && !s; i++)
    if (state.streams[i].ec == ec)
      s = &state.streams[i];
  if (!s) {
    s = ended_stream((state.ring_mask + 1) / 2);
    if (!s && state.streams_used < state.config.max_streams)
      s = new_stream();
    if (!s)
      s = ended_stream(0);
    if (!s && state.streams_used == state.config.max_streams)
      state.header->conditions |= CONDITION_STREAMS_FULL;
    if (!s)
      s = oldest_stream();
    if (!s) {
      ADD(state.header->no_stream, 1);
      return NULL;
    }
    give_to(s, ec, vm_stack);
  } else if (s->vm_stack != vm_stack || (s->depth && !has_same_frames(s, arg))) {
    give_to(s, ec, vm_stack);
  }
  s->stamp = ++state.switches;
  state.current = s;
  return s;
}

/* rb_execution_context_t begins with vm_stack in every version. */
ALWAYS_INLINE struct stream *stream_of(const struct trace_arg *arg) {
  const char *vm_stack = *(const char *const *)arg->ec;
  struct stream *s = state.current;
  if (likely(s && s->ec == arg->ec && s->vm_stack == vm_stack))
    return s;
  return switch_stream(arg, vm_stack);
}

/* ------------------------------------------------------------------- methods */

static VALUE attached_to(VALUE klass) {
  if (rb_class_attached_object)
    return rb_class_attached_object(klass);
  return rb_attr_get(klass, attached_name);
}

static int is_singleton(VALUE owner) {
  return type_of(owner) == TYPE_CLASS && rb_class_real(owner) != owner;
}

/* Ends there, or goes on with a character of `more`. */
static int name_begins(VALUE module, const char *name, size_t length, const char *more) {
  VALUE text = rb_mod_name(module);
  if (!is_object(text) || type_of(text) != TYPE_STRING)
    return 0;
  const char *bytes = rb_string_value_ptr(&text);
  for (size_t i = 0; i < length; i++)
    if (bytes[i] != name[i])
      return 0;
  return bytes[length] == 0 || bytes[length] == *more;
}

static int has_name(VALUE module, const char *name, size_t length) {
  return name_begins(module, name, length, "");
}

static int selects(const struct selector *selector, VALUE owner, ID id) {
  if (selector->id && selector->id != id)
    return 0;
  if (!selector->kind && !selector->owner_length)
    return 1;
  int singleton = is_singleton(owner);
  if (selector->kind && (selector->kind == 2) != singleton)
    return 0;
  if (!selector->owner_length)
    return 1;
  if (singleton) {
    owner = attached_to(owner);
    if (!is_object(owner))
      return 0;
    if (type_of(owner) != TYPE_CLASS && type_of(owner) != TYPE_MODULE)
      owner = rb_obj_class(owner);
  }
  return has_name(owner, selector->owner, selector->owner_length);
}

/* What of the agent runs in the program's own threads, around a fork say. */
static int is_own_method(VALUE owner) {
  static const char name[] = "Tracepoint::Agent";
  if (!is_object(owner))
    return 0;
  if (is_singleton(owner))
    owner = attached_to(owner);
  if (!is_object(owner) || (type_of(owner) != TYPE_CLASS && type_of(owner) != TYPE_MODULE))
    return 0;
  return name_begins(owner, name, sizeof(name) - 1, ":");
}

static size_t selector_size(const struct selector *selector) {
  return sizeof(*selector) + (((size_t)selector->owner_length + 7) & ~(size_t)7);
}

/* program: of the first selector that has expressions, of those that select it */
static int is_selected(VALUE owner, uint64_t id, uint32_t kind, uint32_t *program) {
  *program = 0;
  if (kind > KIND_C)
    return 1;
  if (is_own_method(owner))
    return 0;
  if (!(state.config.flags & FLAG_SELECT))
    return 1;
  int found = 0;
  const char *at = (const char *)state.selectors;
  for (uint32_t i = 0; i < state.config.selectors && !*program; i++) {
    const struct selector *selector = (const struct selector *)at;
    if ((!found || selector->wants) && selects(selector, owner, id)) {
      found = 1;
      *program = selector->wants ? i + 1 : 0;
    }
    if (found && !state.evaluating)
      break;
    at += selector_size(selector);
  }
  return found;
}

ALWAYS_INLINE uint64_t hash_of(VALUE owner, uint64_t id_and_kind) {
  return (owner + (id_and_kind << 5)) * 0x9e3779b97f4a7c15 >> state.keys_shift;
}

static const struct key no_room = {.selected = 1};
static const struct key no_room_unselected = {.selected = 0};

static int is_of_class(VALUE owner) {
  if (!is_object(owner) || !is_singleton(owner))
    return 0;
  VALUE attached = attached_to(owner);
  return is_object(attached) &&
         (type_of(attached) == TYPE_CLASS || type_of(attached) == TYPE_MODULE);
}

/* As is_selected, by the class it is called on or the one it is defined in. */
static int is_selected_of(VALUE owner, VALUE definer, uint64_t id, uint32_t kind,
                          uint32_t *program) {
  uint32_t other = 0;
  int selected = is_selected(definer, id, kind, program);
  if (owner != definer && is_selected(owner, id, kind, &other)) {
    selected = 1;
    if (!*program || (other && other < *program))
      *program = other;
  }
  return selected;
}

NEVER_INLINE const struct key *new_key(VALUE owner, uint64_t id, uint32_t key_kind,
                                       VALUE definer);

ALWAYS_INLINE const struct key *key_in(VALUE owner, uint64_t id, uint32_t kind, VALUE definer) {
  uint64_t mask = (1ull << (64 - state.keys_shift)) - 1;
  uint64_t id_and_kind = id << 3 | kind;
  uint64_t i = hash_of(owner, id_and_kind);
  for (; likely(state.keys[i].id_and_kind); i = (i + 1) & mask)
    if (likely(state.keys[i].owner == owner && state.keys[i].id_and_kind == id_and_kind) &&
        (kind < KIND_RUBY_INHERITED || state.known[state.keys[i].method].definer == definer))
      return &state.keys[i];
  return new_key(owner, id, kind, definer);
}

ALWAYS_INLINE const struct key *key_of(VALUE owner, uint64_t id, uint32_t kind) {
  return key_in(owner, id, kind, owner);
}

/* Its selection may run the collector, whose hook comes here: then look again. */
NEVER_INLINE const struct key *new_key(VALUE owner, uint64_t id, uint32_t key_kind,
                                       VALUE definer) {
  uint32_t program;
  uint32_t kind = key_kind - (key_kind >= KIND_RUBY_INHERITED ? KIND_INHERITED : 0);
  int selected = is_selected_of(owner, definer, id, kind, &program);
  int of_class = kind <= KIND_C && is_of_class(owner);
  if (kind != key_kind && !of_class)
    return key_of(definer, id, kind); /* a class of nobody's */
  uint64_t mask = (1ull << (64 - state.keys_shift)) - 1;
  uint64_t id_and_kind = id << 3 | key_kind;
  uint64_t i = hash_of(owner, id_and_kind);
  for (; state.keys[i].id_and_kind; i = (i + 1) & mask)
    if (state.keys[i].owner == owner && state.keys[i].id_and_kind == id_and_kind &&
        state.known[state.keys[i].method].definer == definer)
      return &state.keys[i];
  if (state.methods_used == state.config.max_methods) {
    state.header->conditions |= CONDITION_METHODS_FULL;
    return selected ? &no_room : &no_room_unselected;
  }
  struct shared_method *method = &state.methods[state.methods_used];
  method->owner = owner;
  method->id = id;
  method->kind = kind;
  method->selected = (uint32_t)selected;
  state.keys[i] = (struct key){owner, id_and_kind, state.methods_used, (uint8_t)selected,
                               (uint8_t)(of_class && kind == key_kind), (uint16_t)program};
  state.known[state.methods_used] = (struct known){owner, id << 3 | kind, definer};
  RELEASE(state.header->methods, ++state.methods_used);
  return &state.keys[i];
}

/* A method of classes or modules, of the one that it was called on. */
NEVER_INLINE const struct key *key_of_class(const struct key *key, VALUE self) {
  VALUE definer = key->owner;
  if (!is_object(self))
    return key;
  VALUE owner = ((const struct basic *)self)->klass;
  if (likely(owner == definer))
    return key;
  return key_in(owner, key->id_and_kind >> 3, (key->id_and_kind & 7) + KIND_INHERITED, definer);
}

/* The method entry in an ep[-2], or behind its svar; as check_method_entry. */
ALWAYS_INLINE const char *method_entry_in(VALUE word, int may_be_svar) {
  if (!is_object(word))
    return NULL;
  VALUE flags = ((const struct basic *)word)->flags;
  if ((flags & TYPE_MASK) != TYPE_IMEMO)
    return NULL;
  uint32_t imemo = (flags >> 12) & 15;
  if (likely(imemo == state.config.ment_imemo))
    return (const char *)word;
  if (imemo == state.config.svar_imemo && may_be_svar)
    return method_entry_in(((const struct basic *)word)->klass, 0); /* cref_or_me */
  return NULL;
}

/* ep[-2] is me, cref or svar; ep[-1] of a block is the ep around it. */
ALWAYS_INLINE int method_of_frame(const char *cfp, VALUE *owner, ID *id) {
  const VALUE *ep = *(const VALUE *const *)(cfp + state.config.cfp_ep);
  const char *me = NULL;
  while (!(ep[0] & state.config.local_flag)) {
    if ((me = method_entry_in(ep[-2], 0)))
      break;
    ep = (const VALUE *)(ep[-1] & ~(VALUE)3);
  }
  if (!me && !(me = method_entry_in(ep[-2], 1)))
    return 0;
  const char *definition = *(const char *const *)(me + state.config.me_def);
  *owner = *(const VALUE *)(me + state.config.me_owner);
  *id = *(const ID *)(definition + state.config.def_original_id);
  return 1;
}

enum { FRAMES_COMPARED = 64 };

/*
 * A fiber that was dropped leaves calls open, and another one may be made in its place.
 * Has each of the outer frames still the method that was entered there?
 */
static int has_same_frames(const struct stream *s, const struct trace_arg *arg) {
  if (!state.has_offsets)
    return 1; /* nobody can say */
  for (uint32_t i = 0; i < s->depth && i < FRAMES_COMPARED; i++) {
    const struct call *call = &s->calls[i];
    const struct known *known = &state.known[call->method];
    VALUE owner = 0;
    ID id = 0;
    if (call->key <= (uint64_t)arg->cfp)
      break; /* no frame of now; abandon_above knows */
    if (call->is_c || !call->method)
      continue;
    if (!method_of_frame((const char *)call->key, &owner, &id) || id != known->id_and_kind >> 3)
      return 0;
    if (owner != known->definer && is_object(owner) && type_of(owner) == TYPE_ICLASS)
      owner = ((const struct basic *)owner)->klass;
    if (owner != known->definer)
      return 0;
  }
  return 1;
}

NEVER_INLINE int verified_method(const char *cfp, VALUE *owner, ID *id) {
  VALUE owner_of_ours = 0;
  ID id_of_ours = 0;
  int found = method_of_frame(cfp, &owner_of_ours, &id_of_ours);
  int is = rb_frame_method_id_and_class(id, owner);
  if (found != !!is || (is && (owner_of_ours != *owner || id_of_ours != *id))) {
    state.has_offsets = 0;
    state.header->conditions |= CONDITION_NO_OFFSETS;
  }
  state.to_verify--;
  return is;
}

/* The method an event is of, or NULL if it is of none. */
ALWAYS_INLINE const struct key *method_of(const struct trace_arg *arg, uint32_t kind) {
  VALUE owner = arg->klass;
  ID id = arg->id;
  if (owner) {
    if (unlikely(type_of(owner) == TYPE_ICLASS))
      owner = ((const struct basic *)owner)->klass;
  } else if (unlikely(!state.has_offsets)) {
    if (!rb_frame_method_id_and_class(&id, &owner))
      return NULL;
  } else if (unlikely(state.to_verify)) {
    if (!verified_method(arg->cfp, &owner, &id))
      return NULL;
  } else if (unlikely(!method_of_frame(arg->cfp, &owner, &id))) {
    return NULL;
  }
  const struct key *key = key_of(owner, id, kind);
  return unlikely(key->of_class) ? key_of_class(key, arg->self) : key;
}

/* -------------------------------------------------------------------- tables */

ALWAYS_INLINE uint32_t bucket_of(uint64_t ns) {
  const uint64_t highest = 3600 * 1000000000ull;
  uint64_t v = ns < highest ? ns : highest;
  uint32_t b = 53 - (uint32_t)__builtin_clzll(v | 2047); /* bits beyond 11 */
  return (b << 10) + (uint32_t)(v >> b);
}

NEVER_INLINE uint32_t new_block(uint32_t *entry) {
  if (state.blocks_used >= state.config.max_blocks) {
    state.header->conditions |= CONDITION_BLOCKS_FULL;
    ADD(state.header->no_block, 1);
    return 0;
  }
  uint32_t block = state.blocks_used;
  RELEASE(state.header->blocks, ++state.blocks_used);
  RELEASE(*entry, block);
  return block;
}

ALWAYS_INLINE void count_duration(uint32_t method, uint64_t ns) {
  if (!state.directory)
    return;
  uint32_t bucket = bucket_of(ns);
  uint32_t *entry = &state.directory[(size_t)method * BLOCKS_A_METHOD + bucket / BLOCK_COUNTERS];
  /* Loaded once: who has mapped it may change it after the check. */
  uint32_t block = __atomic_load_n(entry, __ATOMIC_RELAXED);
  if (unlikely(!block) && !(block = new_block(entry)))
    return;
  if (unlikely(block >= state.config.max_blocks))
    return; /* not what we wrote */
  ADD(state.blocks[block][bucket % BLOCK_COUNTERS], 1);
}

ALWAYS_INLINE void count_return(uint32_t index, uint64_t duration, uint64_t child, int outermost) {
  struct shared_method *method = &state.methods[index];
  ADD(method->calls, 1);
  ADD(method->sum, duration);
  ADD(method->self, ticks_since(child, duration));
  if (outermost)
    ADD(method->total, duration);
  if (duration > method->max)
    STORE(method->max, duration);
  count_duration(index, ns_of(duration));
}

/* ---------------------------------------------------------------- expressions */

/* What a TEXT record says, docs/agent.md, "Values of expressions". */
enum { MAX_VALUES = 1200, VALUES_HEAD = 3 };
enum { VALUES_FOLLOW, VALUES_LATE, VALUES_TOO_MANY };

struct values {
  uint32_t size;
  uint8_t bytes[MAX_VALUES];
};

/*
 * An evaluation that is under way. It may outlive what was armed, and its fiber may
 * never go on, so that it stands here and not on that fiber's stack. All of it is read
 * and changed with the GVL.
 */
struct evaluation {
  uint64_t serial; /* 0: free */
  VALUE thread;
  const char *ec;
  uint64_t deadline_ns, limit_ns;
  uint64_t cpu_ns; /* its thread's, when it began or was last told to stop */
  uint32_t tid;
  uint64_t arming;
  uint32_t stops; /* how often it was told to stop */
  uint8_t telling;
  uint8_t away; /* not to be told any more: it is over, or its thread left its fiber */
};

enum { MAX_EVALUATIONS = 256, MAX_STOPS = 100 };
static struct evaluation evaluations[MAX_EVALUATIONS];
static uint64_t serials;
static VALUE expressions; /* the module, which evaluates */
static VALUE nil_value, stop_class, raise_method, asleep_method;
static ID of_name, flush_name, bind_call_name;
static int hooks_fibers;

/* What evaluate() and its parts share. */
struct evaluating {
  const struct trace_arg *arg;
  struct values *values;
  struct evaluation *evaluation;
  uint64_t serial;
  uint32_t program;
  int is_c;
};

static VALUE evaluate_body(VALUE data) {
  const struct evaluating *e = (const struct evaluating *)data;
  struct trace_arg *arg = (struct trace_arg *)e->arg;
  unsigned wants = state.programs[e->program].wants;
  VALUE arguments[] = {rb_ull2inum(e->program - 1), nil_value, arg->self, nil_value, nil_value};
  /* A method written in C has no frame yet: it would be its caller's. */
  if ((wants & WANTS_BINDING) && !e->is_c)
    arguments[1] = rb_tracearg_binding(arg);
  if (wants & WANTS_PLACE) {
    arguments[3] = rb_tracearg_path(arg);
    arguments[4] = rb_tracearg_lineno(arg);
  }
  VALUE found = rb_funcallv(expressions, of_name, 5, arguments);
  if (!is_object(found) || type_of(found) != TYPE_STRING)
    return nil_value;
  size_t size = rb_num2ull(rb_str_length(found)); /* it is binary */
  const char *bytes = rb_string_value_ptr(&found);
  if (size > MAX_VALUES)
    return nil_value;
  for (size_t i = 0; i < size; i++)
    e->values->bytes[i] = (uint8_t)bytes[i];
  e->values->size = (uint32_t)size;
  return nil_value;
}

static VALUE flush_body(VALUE unused) {
  (void)unused;
  return rb_funcallv(expressions, flush_name, 0, NULL);
}

static VALUE schedule_body(VALUE unused) {
  (void)unused;
  rb_thread_schedule();
  return unused;
}

/* What throw and break leave as Ruby's error is no exception. */
static int is_exception(VALUE error) {
  return is_object(error) && type_of(error) != TYPE_IMEMO;
}

static int is_stop(VALUE error) {
  return is_exception(error) && rb_obj_is_kind_of(error, stop_class) != FALSE_VALUE;
}

/* Is its thread being told to stop just now? */
static int is_telling(const struct evaluation *evaluation, uint64_t serial) {
  return evaluation && evaluation->serial == serial && evaluation->telling;
}

/*
 * Have our exceptions that are on their way to this thread raised here, where they do
 * nothing. What else comes meanwhile is the program's: how it left, or 0.
 */
static int flush_stops(const struct evaluation *evaluation, uint64_t serial) {
  int left = 0;
  VALUE error = nil_value;
  for (int i = 0; i < MAX_STOPS || is_telling(evaluation, serial); i++) {
    int how = 0;
    int waits = is_telling(evaluation, serial);
    rb_protect(waits ? schedule_body : flush_body, nil_value, &how);
    if (!how && !waits)
      break;
    if (!how || is_stop(rb_errinfo()))
      continue;
    left = how;
    error = rb_errinfo();
    if (!is_exception(error))
      return left; /* a kill, or a throw: to be left as it is */
  }
  rb_set_errinfo(error);
  return left;
}

static VALUE evaluate_end(VALUE data) {
  const struct evaluating *e = (const struct evaluating *)data;
  struct evaluation *evaluation = e->evaluation;
  if (evaluation->serial != e->serial)
    return nil_value; /* in a child that a fork has made meanwhile */
  evaluation->away = 1;
  int left = evaluation->stops ? flush_stops(evaluation, e->serial) : 0;
  if (evaluation->serial == e->serial) {
    if (evaluation->arming == arming && alive->armed) {
      struct program *program = &state.programs[e->program];
      if (!evaluation->stops)
        program->late = 0;
      else if (program->late < MAX_LATE)
        program->late++;
    }
    evaluation->serial = 0;
  }
  if (left)
    rb_jump_tag(left);
  return nil_value;
}

static VALUE evaluate_and_end(VALUE data) {
  return rb_ensure(evaluate_body, data, evaluate_end, data);
}

static struct evaluation *new_evaluation(const struct trace_arg *arg) {
  for (int i = 0; i < MAX_EVALUATIONS; i++) {
    if (evaluations[i].serial)
      continue;
    uint64_t limit = state.config.limit_ns;
    evaluations[i] = (struct evaluation){.serial = ++serials,
                                         .thread = rb_thread_current(),
                                         .ec = arg->ec,
                                         .deadline_ns = monotonic_ns() + limit,
                                         .limit_ns = limit,
                                         .cpu_ns = thread_cpu_ns(),
                                         .tid = (uint32_t)syscall(SYS_gettid),
                                         .arming = arming};
    return &evaluations[i];
  }
  return NULL;
}

static void values_are(struct values *values, uint32_t program, uint8_t what) {
  values->bytes[0] = (uint8_t)(program - 1);
  values->bytes[1] = (uint8_t)((program - 1) >> 8);
  values->bytes[2] = what;
  values->size = VALUES_HEAD;
}

/*
 * The values of a program's expressions, or why there are none. Nothing of the
 * expressions leaves, but what other threads and signals send to this thread: how
 * (for rb_jump_tag), or 0.
 */
NEVER_INLINE int evaluate(const struct trace_arg *arg, uint32_t program, int is_c,
                          struct values *values) {
  values->size = 0;
  if (state.programs[program].late >= MAX_LATE) {
    values_are(values, program, VALUES_LATE);
    return 0;
  }
  struct evaluation *evaluation = new_evaluation(arg);
  if (!evaluation) {
    values_are(values, program, VALUES_TOO_MANY);
    return 0;
  }
  struct evaluating e = {arg, values, evaluation, evaluation->serial, program, is_c};
  int left = 0;
  rb_protect(evaluate_and_end, (VALUE)&e, &left);
  if (left && is_stop(rb_errinfo())) {
    rb_set_errinfo(nil_value);
    left = 0;
  }
  return left;
}

/*
 * The exception that ends an evaluation is for its fiber. When its thread goes to
 * another one, what is on its way is taken back, and no more is sent.
 */
static void hook_fiber(VALUE data, const struct trace_arg *arg) {
  (void)data;
  VALUE thread = rb_thread_current();
  int on_its_way = 0;
  for (int i = 0; i < MAX_EVALUATIONS; i++) {
    struct evaluation *evaluation = &evaluations[i];
    if (!evaluation->serial || evaluation->thread != thread || evaluation->ec == arg->ec)
      continue;
    on_its_way |= !evaluation->away && evaluation->stops;
    evaluation->away = 1;
  }
  if (!on_its_way)
    return;
  int left = flush_stops(NULL, 0);
  if (left)
    rb_jump_tag(left);
}

static VALUE raise_body(VALUE thread) {
  VALUE arguments[] = {thread, stop_class};
  return rb_funcallv(raise_method, bind_call_name, 2, arguments);
}

static VALUE asleep_body(VALUE thread) {
  return rb_funcallv(asleep_method, bind_call_name, 1, &thread);
}

/* The processor time of a thread of ours; of one that is gone no limit has it. */
static uint64_t cpu_of_thread(uint32_t tid) {
  struct timespec now;
  clockid_t clock = (clockid_t)(~tid << 3 | 6); /* as pthread_getcpuclockid has it */
  if (clock_gettime(clock, &now))
    return UINT64_MAX;
  return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/*
 * Has it run or slept for so long? One that waits for a processor or for Ruby's lock
 * is not slow itself.
 */
static int is_late(const struct evaluation *evaluation, uint64_t now, int *left) {
  if (now < evaluation->deadline_ns)
    return 0;
  uint64_t cpu = cpu_of_thread(evaluation->tid);
  if (cpu >= evaluation->cpu_ns + evaluation->limit_ns)
    return 1;
  uint64_t serial = evaluation->serial;
  VALUE asleep = rb_protect(asleep_body, evaluation->thread, left);
  return !*left && evaluation->serial == serial && asleep != FALSE_VALUE;
}

/* Whether there is anything left to watch for. */
static int is_watching(void) {
  if (alive->armed && state.evaluating)
    return 1;
  for (int i = 0; i < MAX_EVALUATIONS; i++)
    if (evaluations[i].serial && !evaluations[i].away)
      return 1;
  return 0;
}

/*
 * watch: end the evaluations that take too long, and those of what is disarmed. True
 * if it has to be called again.
 */
static VALUE native_watch(VALUE self) {
  (void)self;
  uint64_t now = monotonic_ns();
  int left = 0;
  for (int i = 0; i < MAX_EVALUATIONS && !left; i++) {
    struct evaluation *evaluation = &evaluations[i];
    if (!evaluation->serial || evaluation->away || evaluation->telling)
      continue;
    int is_over = evaluation->arming != arming || !alive->armed;
    if (!(is_over && !evaluation->stops) && !is_late(evaluation, now, &left))
      continue;
    /* Before it is raised: it may be over before we come back. */
    evaluation->stops++;
    evaluation->deadline_ns = now + evaluation->limit_ns;
    evaluation->cpu_ns = cpu_of_thread(evaluation->tid);
    evaluation->telling = 1;
    rb_protect(raise_body, evaluation->thread, &left);
    evaluation->telling = 0;
  }
  if (left)
    rb_jump_tag(left);
  if (is_watching())
    return rb_ull2inum(1);
  if (hooks_fibers) {
    rb_remove_event_hook_with_data(hook_fiber, marker);
    hooks_fibers = 0;
  }
  return FALSE_VALUE;
}

/* An entry, and behind it its values: all of them, or none. */
NEVER_INLINE void put_with_values(struct stream *s, uint64_t time, uint32_t method,
                                  uint32_t depth, uint8_t kind, const struct values *values) {
  uint32_t size = values->size;
  uint32_t records = (size + TEXT_BYTES - 1) / TEXT_BYTES;
  if (!records || !has_room(s, 1 + records + (s->lost > 0))) {
    if (records)
      ADD(state.header->no_values, 1);
    put(s, time, method, depth, kind, 0);
    return;
  }
  put(s, time, method, depth, kind, RECORD_VALUES);
  for (uint32_t at = 0; at < size; at += TEXT_BYTES) {
    uint32_t length = size - at < TEXT_BYTES ? size - at : TEXT_BYTES;
    struct record record = {.kind = RECORD_TEXT};
    record.flags = (uint8_t)(length | (at + length < size ? TEXT_GOES_ON : 0));
    __builtin_memcpy(&record, values->bytes + at, length);
    s->ring[s->written++ & state.ring_mask] = record;
  }
}

/* --------------------------------------------------------------------- calls */

/*
 * What orders frames. A C call is announced before its frame is there, and its
 * return after it is gone, so it is put just below its caller.
 */
ALWAYS_INLINE uint64_t key_of_frame(const struct trace_arg *arg, int is_c) {
  return (uint64_t)arg->cfp - (uint64_t)is_c;
}

ALWAYS_INLINE void open_call(struct stream *s, const struct trace_arg *arg,
                             const struct key *method, const struct values *values,
                             int mode, int is_c) {
  uint64_t key = key_of_frame(arg, is_c);
  if (unlikely(!method->method))
    ADD(state.header->no_method, 1);
  if (unlikely(s->depth == MAX_DEPTH)) {
    ADD(state.header->too_deep, 1);
    return;
  }
  struct call *call = &s->calls[s->depth];
  call->key = key;
  call->method = method->method;
  call->is_c = (uint32_t)is_c;
  call->child = 0;
  if (mode == MODE_TABLE) {
    ADD(state.methods[method->method].entries, 1);
    s->active[method->method]++;
  }
  if (mode == MODE_SLOW) {
    call->at = s->written;
    call->lost = s->lost;
    call->dropped = (uint32_t)s->dropped;
    if (state.config.flags & FLAG_CPU)
      call->cpu = thread_cpu_ns();
  }
  uint64_t now = ticks();
  call->start = now;
  uint8_t kind = is_c ? RECORD_C_ENTRY : RECORD_ENTRY;
  if (values)
    put_with_values(s, now, call->method, s->depth, kind, values);
  else if (mode == MODE_RING || mode == MODE_SLOW)
    put(s, now, call->method, s->depth, kind, 0);
  if (mode == MODE_RING)
    publish(s);
  if (unlikely(state.sites))
    (is_c ? site_c_entry : site_entry)(method->owner, method->id_and_kind >> 3, s->ec, s->depth);
  s->depth++;
}

ALWAYS_INLINE void abandon_above(struct stream *s, const struct trace_arg *arg, int is_c) {
  uint64_t key = key_of_frame(arg, is_c);
  while (unlikely(s->depth && s->calls[s->depth - 1].key <= key))
    abandon(s);
}

/*
 * Evaluating runs Ruby: other threads and fibers, the collector, and us again, to
 * disarm and to arm. So it comes first, and all is looked up after it.
 */
NEVER_INLINE void enter_evaluating(const struct trace_arg *arg, const struct key *method,
                                   int mode, int is_c) {
  struct values values;
  uint64_t before = arming;
  int left = evaluate(arg, method->program, is_c, &values);
  struct stream *s = NULL;
  if (alive->armed && arming == before)
    s = stream_of(arg);
  if (s && !s->ignored) {
    abandon_above(s, arg, is_c);
    open_call(s, arg, method, &values, mode, is_c);
  }
  if (left)
    rb_jump_tag(left);
}

ALWAYS_INLINE void enter(struct stream *s, const struct trace_arg *arg, int mode, int is_c) {
  abandon_above(s, arg, is_c);
  const struct key *method = method_of(arg, is_c ? KIND_C : KIND_RUBY);
  if (unlikely(!method) || !method->selected)
    return;
  if ((mode == MODE_RING || mode == MODE_SLOW) && unlikely(method->program))
    enter_evaluating(arg, method, mode, is_c);
  else
    open_call(s, arg, method, NULL, mode, is_c);
}

/* A call has returned, and stands at s->depth: keep it, or take it all back. */
NEVER_INLINE void settle(struct stream *s, struct call *call, uint64_t now, uint64_t duration) {
  int whole = state.config.flags & FLAG_WHOLE;
  uint64_t cpu = 0;
  uint64_t measured = ns_of(duration);
  if (state.config.flags & FLAG_CPU)
    measured = cpu = ticks_since(call->cpu, thread_cpu_ns());
  int slow = measured >= state.config.threshold_ns;
  if (!slow && call->at >= s->published && (!whole || s->depth == 0)) {
    s->written = call->at;
    s->lost = call->lost;
    s->dropped -= (uint32_t)((uint32_t)s->dropped - call->dropped);
    return;
  }
  put(s, now, call->method, s->depth, call->is_c ? RECORD_C_RETURN : RECORD_RETURN, 0);
  if (state.config.flags & FLAG_CPU)
    put(s, cpu, call->method, s->depth, RECORD_CPU, 0);
  /* Calls around a slow one are slow; a whole tree is if its root is. */
  if (whole) {
    const struct call *root = s->depth ? &s->calls[0] : call;
    if (root->at >= s->published)
      slow = state.config.flags & FLAG_CPU
                 ? ticks_since(root->cpu, call->cpu + cpu) >= state.config.threshold_ns
                 : ns_of(ticks_since(root->start, now)) >= state.config.threshold_ns;
    else
      slow = 1;
  }
  if (slow) {
    publish(s);
    STORE(s->shared->dropped, s->dropped);
  }
}

ALWAYS_INLINE void leave(struct stream *s, int mode) {
  struct call *call = &s->calls[--s->depth];
  uint64_t now = ticks();
  uint64_t duration = ticks_since(call->start, now);
  if (mode == MODE_TABLE) {
    uint32_t active = --s->active[call->method];
    count_return(call->method, duration, call->child, active == 0);
    if (s->depth)
      s->calls[s->depth - 1].child += duration;
  } else if (mode == MODE_RING) {
    put(s, now, call->method, s->depth, call->is_c ? RECORD_C_RETURN : RECORD_RETURN, 0);
    publish(s);
  } else if (mode == MODE_SLOW) {
    settle(s, call, now, duration);
    STORE(s->shared->written, s->written);
  }
  if (unlikely(state.sites)) {
    const struct shared_method *method = &state.methods[call->method];
    (call->is_c ? site_c_return : site_return)(method->owner, method->id, s->ec, s->depth,
                                               (int64_t)ns_of(duration));
  }
}

enum { FRAMES_NEAR = 128 }; /* a control frame is 56 or 64 bytes */

/*
 * Which of the open calls returns here: its place in calls plus 1, or 0.
 *
 * A method made of a block may report its return when its frame is gone, up to
 * Ruby 3.0, and a C method that is unwound while its frame is still there. Such
 * events name their method, so one frame beside will do if it is the same.
 */
static uint32_t find_call(const struct stream *s, uint64_t key, const struct key *method) {
  for (uint32_t i = s->depth; i > 0; i--) {
    const struct call *call = &s->calls[i - 1];
    if (call->key > key + FRAMES_NEAR)
      return 0;
    if (!method ? call->key == key
                : call->method == method->method && call->key + FRAMES_NEAR >= key)
      return i;
  }
  return 0;
}

NEVER_INLINE void leave_orphan(struct stream *s, const struct key *method, int mode, int is_c) {
  ADD(state.header->orphans, 1);
  if (mode == MODE_RING) {
    put(s, ticks(), method->method, 0, is_c ? RECORD_C_RETURN : RECORD_RETURN, RECORD_ORPHAN);
    publish(s);
  }
  if (state.sites)
    (is_c ? site_c_return : site_return)(method->owner, method->id_and_kind >> 3, s->ec, 0, -1);
}

NEVER_INLINE void leave_other(struct stream *s, const struct trace_arg *arg, int mode, int is_c) {
  uint64_t key = key_of_frame(arg, is_c);
  if (!arg->klass && s->depth && s->calls[s->depth - 1].key > key)
    return; /* within what was recorded, and itself not */
  const struct key *method = NULL;
  if (arg->klass) {
    method = method_of(arg, is_c ? KIND_C : KIND_RUBY);
    if (!method->selected)
      return;
  }
  uint32_t found = find_call(s, key, method);
  if (found) {
    while (s->depth > found)
      abandon(s);
    leave(s, mode);
    return;
  }
  if (!method)
    method = method_of(arg, KIND_RUBY);
  if (method && method->selected && !(s->depth && s->calls[s->depth - 1].key > key))
    leave_orphan(s, method, mode, is_c);
}

NEVER_INLINE void raised(struct stream *s, const struct trace_arg *arg, int mode) {
  if (!is_object(arg->data))
    return;
  VALUE owner = rb_obj_class(arg->data);
  const struct key *method = key_of(owner, 0, KIND_RAISE);
  if (mode == MODE_TABLE)
    ADD(state.methods[method->method].entries, 1);
  if (s->ring) {
    put(s, ticks(), method->method, s->depth, RECORD_RAISE, 0);
    if (mode == MODE_RING || s->depth == 0)
      publish(s);
  }
  if (state.sites)
    site_raise(owner, arg->data, s->ec);
}

ALWAYS_INLINE void on_event(const struct trace_arg *arg, int mode) {
  if (unlikely(!alive->armed))
    return;
  struct stream *s = stream_of(arg);
  if (unlikely(!s || s->ignored))
    return;
  switch (arg->event) {
  case EVENT_CALL:
    enter(s, arg, mode, 0);
    break;
  case EVENT_RETURN:
    if (likely(!arg->klass && s->depth && s->calls[s->depth - 1].key == (uint64_t)arg->cfp))
      leave(s, mode);
    else if (!state.selecting || s->depth)
      leave_other(s, arg, mode, 0);
    break;
  case EVENT_C_CALL:
    enter(s, arg, mode, 1);
    break;
  case EVENT_C_RETURN:
    if (!state.selecting || s->depth)
      leave_other(s, arg, mode, 1);
    break;
  case EVENT_RAISE:
    raised(s, arg, mode);
    break;
  }
}

static void hook_empty(VALUE data, const struct trace_arg *arg) {
  (void)data;
  (void)arg;
}

static void hook_ring(VALUE data, const struct trace_arg *arg) {
  (void)data;
  on_event(arg, MODE_RING);
}

static void hook_table(VALUE data, const struct trace_arg *arg) {
  (void)data;
  on_event(arg, MODE_TABLE);
}

static void hook_slow(VALUE data, const struct trace_arg *arg) {
  (void)data;
  on_event(arg, MODE_SLOW);
}

static void hook_sites(VALUE data, const struct trace_arg *arg) {
  (void)data;
  on_event(arg, MODE_SITES);
}

/* Indexed by enum mode. */
static const hook_function hooks[] = {hook_empty, hook_ring, hook_table, hook_slow, hook_sites};

/* --------------------------------------------------------------- GC, objects */

static void record_apart(struct stream *s, uint64_t now, uint32_t method, uint8_t kind) {
  if (!s->ring)
    return;
  put(s, now, method, s->depth, kind, 0);
  if (state.config.mode == MODE_RING || s->depth == 0)
    publish(s);
}

static void gc_event(struct stream *s, int begins) {
  uint64_t now = ticks();
  record_apart(s, now, state.gc_method, begins ? RECORD_GC_BEGIN : RECORD_GC_END);
  if (begins) {
    state.gc_start = now;
    if (state.config.mode == MODE_TABLE)
      ADD(state.methods[state.gc_method].entries, 1);
    if (state.sites)
      site_gc_begin(s->ec);
    return;
  }
  if (!state.gc_start)
    return; /* armed in the middle of it */
  uint64_t duration = ticks_since(state.gc_start, now);
  state.gc_start = 0;
  if (state.config.mode == MODE_TABLE)
    count_return(state.gc_method, duration, 0, 1);
  if (state.sites)
    site_gc_end(s->ec, (int64_t)ns_of(duration));
}

/* 0 for what Ruby keeps to itself; an imemo has something else in that place. */
static VALUE class_of_new(VALUE object) {
  if (!is_object(object) || type_of(object) >= TYPE_IMEMO)
    return 0;
  VALUE klass = ((const struct basic *)object)->klass;
  return is_object(klass) && type_of(klass) == TYPE_CLASS ? klass : 0;
}

static void object_event(struct stream *s, VALUE object) {
  VALUE owner = class_of_new(object);
  const struct key *method = key_of(owner, 0, KIND_OBJECT);
  if (state.config.mode == MODE_TABLE)
    ADD(state.methods[method->method].entries, 1);
  record_apart(s, ticks(), method->method, RECORD_OBJECT);
  if (state.sites)
    site_object(owner, object, s->ec);
}

/* Ruby takes hooks on its inner events only apart from the others. */
static void hook_inner(VALUE data, const struct trace_arg *arg) {
  (void)data;
  if (!alive->armed)
    return;
  struct stream *s = stream_of(arg);
  if (!s)
    return;
  if (arg->event == EVENT_NEWOBJ) {
    if (!s->ignored)
      object_event(s, arg->data);
  } else {
    gc_event(s, arg->event == EVENT_GC_ENTER);
  }
}

/* -------------------------------------------------------------------- arming */

static void mark_classes(void *unused) {
  (void)unused;
  VALUE last = 0;
  for (int i = 0; i < MAX_EVALUATIONS; i++)
    if (evaluations[i].serial)
      rb_gc_mark(evaluations[i].thread);
  for (uint32_t i = 1; i < state.methods_used; i++) {
    const struct known *known = &state.known[i];
    if (known->owner != last && is_object(known->owner))
      rb_gc_mark(known->owner); /* which also keeps it where it is */
    if (known->definer != known->owner)
      rb_gc_mark(known->definer);
    last = known->owner;
  }
}

static uint64_t aligned(uint64_t size) { return (size + 4095) & ~4095ull; }

enum { MAX_SIZE_GIB = 16 };

static int lay_out(struct header *header) {
  const struct config *config = &state.config;
  int table = config->mode == MODE_TABLE;
  int ring = config->mode == MODE_RING || config->mode == MODE_SLOW;
  uint64_t at = HEADER_SIZE;
  *header = (struct header){
      .magic = {'R', 'B', 'T', 'R', 'A', 'G', 'T', '1'},
      .version = 1,
      .header_size = HEADER_SIZE,
      .pid = config->pid,
      .mode = config->mode,
      .flags = config->flags,
      .clock = config->clock,
      .mult = config->mult,
      .ticks0 = config->ticks0,
      .ns0 = config->ns0,
      .ticks1 = config->ticks1,
      .ns1 = config->ns1,
      .threshold_ns = config->threshold_ns,
      .methods_capacity = config->max_methods,
      .method_size = sizeof(struct shared_method),
      .streams_capacity = config->max_streams,
      .stream_size = sizeof(struct shared_stream),
      .methods = 1,
      .blocks = 1,
      .state = STATE_ARMED,
  };
  header->streams_offset = at;
  at = aligned(at + (uint64_t)config->max_streams * sizeof(struct shared_stream));
  header->methods_offset = at;
  at = aligned(at + (uint64_t)config->max_methods * sizeof(struct shared_method));
  if (table && (config->flags & FLAG_HISTOGRAMS)) {
    header->directory_offset = at;
    header->directory_entries = BLOCKS_A_METHOD;
    header->directory_entry_size = sizeof(uint32_t);
    at = aligned(at + (uint64_t)config->max_methods * BLOCKS_A_METHOD * sizeof(uint32_t));
    header->blocks_offset = at;
    header->blocks_capacity = config->max_blocks;
    header->block_size = BLOCK_COUNTERS * sizeof(uint64_t);
    at = aligned(at + (uint64_t)config->max_blocks * BLOCK_COUNTERS * sizeof(uint64_t));
  }
  if (ring) {
    header->rings_offset = at;
    header->ring_records = config->ring_records;
    header->record_size = sizeof(struct record);
    at = aligned(at + (uint64_t)config->max_streams * config->ring_records * sizeof(struct record));
  }
  header->size = at;
  return at <= (uint64_t)MAX_SIZE_GIB << 30 ? 0 : EFBIG;
}

enum {
  FD_CLOEXEC_SEALABLE = 0x1 | 0x2,
  FD_NOEXEC = 0x8,
  ADD_SEALS = 1033, /* fcntl's, which <fcntl.h> hides behind macros of libc's */
  SEAL_SEAL = 0x1,
  SEAL_SHRINK = 0x2,
  SEAL_GROW = 0x4,
  SEAL_FUTURE_WRITE = 0x10,
};

static int memory_file(const char *name, uint64_t size) {
  struct rlimit limit;
  /* Beyond it ftruncate is answered with a signal that kills. */
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < size) {
    errno = EFBIG;
    return -1;
  }
  int fd = (int)syscall(SYS_memfd_create, name, FD_CLOEXEC_SEALABLE | FD_NOEXEC);
  if (fd < 0 && errno == EINVAL) /* Linux before 6.3 */
    fd = (int)syscall(SYS_memfd_create, name, FD_CLOEXEC_SEALABLE);
  if (fd < 0)
    return -1;
  if (syscall(SYS_ftruncate, fd, size)) {
    close(fd);
    return -1;
  }
  return fd;
}

/* Neither a child nor a core file is to have it. */
static char *map_shared(int fd, uint64_t size) {
  char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (memory == MAP_FAILED)
    return NULL;
  if (madvise(memory, size, MADV_DONTFORK)) {
    munmap(memory, size);
    return NULL;
  }
  madvise(memory, size, MADV_DONTDUMP);
  return memory;
}

static int seal(int fd, int seals) { return (int)syscall(SYS_fcntl, fd, ADD_SEALS, seals); }

/* in_child: the shared memory is not there, something else may be. */
static void release(int in_child) {
  for (uint32_t i = 0; state.streams && i < state.streams_used; i++)
    munmap(state.streams[i].calls, calls_size() + active_size());
  if (state.streams)
    munmap(state.streams, state.streams_size);
  if (state.keys)
    munmap(state.keys, state.keys_size);
  if (state.known)
    munmap(state.known, state.known_size);
  if (state.selectors)
    munmap(state.selectors, state.selectors_size);
  if (state.data && !in_child)
    munmap(state.data, state.data_size);
  if (state.control && !in_child)
    munmap(state.control, state.control_size);
  state = (struct state){.data_fd = -1, .control_fd = -1};
}

static int allocate_private(const char *selectors, size_t selectors_size) {
  unsigned bits = 5;
  while (1ull << bits < 2ull * state.config.max_methods)
    bits++;
  state.keys_shift = 64 - bits;
  state.keys_size = sizeof(struct key) << bits;
  state.keys = map_private(state.keys_size);
  state.streams_size = state.config.max_streams * sizeof(struct stream);
  state.streams = map_private(state.streams_size);
  state.selectors_size = selectors_size + 8;
  state.selectors = map_private(state.selectors_size);
  state.known_size = state.config.max_methods * sizeof(struct known);
  state.known = map_private(state.known_size);
  if (!state.keys || !state.known || !state.streams || !state.selectors)
    return ENOMEM;
  for (size_t i = 0; i < selectors_size; i++)
    ((char *)state.selectors)[i] = selectors[i];
  return 0;
}

static int allocate_shared(const struct header *header) {
  state.control_size = (size_t)LINE * (state.config.max_streams + 1);
  state.data_size = header->size;
  state.data_fd = memory_file("rbtrace-agent", header->size);
  if (state.data_fd < 0)
    return errno;
  state.control_fd = memory_file("rbtrace-agent-control", state.control_size);
  if (state.control_fd < 0)
    return errno;
  state.data = map_shared(state.data_fd, state.data_size);
  state.control = map_shared(state.control_fd, state.control_size);
  return state.data && state.control ? 0 : ENOMEM;
}

static void point_into(const struct header *header) {
  state.header = (struct header *)state.data;
  *state.header = *header;
  state.methods = (struct shared_method *)(state.data + header->methods_offset);
  if (header->directory_offset) {
    state.directory = (uint32_t *)(state.data + header->directory_offset);
    state.blocks = (uint64_t(*)[BLOCK_COUNTERS])(state.data + header->blocks_offset);
  }
  state.ring_mask = header->ring_records ? header->ring_records - 1 : 0;
  for (uint32_t i = 0; i < state.config.max_streams; i++) {
    struct stream *s = &state.streams[i];
    s->shared = (struct shared_stream *)(state.data + header->streams_offset) + i;
    s->tail_of_reader = (const uint64_t *)(state.control + (size_t)LINE * (i + 1));
    if (header->ring_records)
      s->ring = (struct record *)(state.data + header->rings_offset) +
                (size_t)i * header->ring_records;
  }
  static const char magic[8] = {'R', 'B', 'T', 'R', 'C', 'T', 'L', '1'};
  __builtin_memcpy(state.control, magic, 8);
  ((uint32_t *)state.control)[2] = 1;
  ((uint32_t *)state.control)[3] = state.config.max_streams;
}

static uint32_t method_events(void) {
  uint32_t flags = state.config.flags, events = 0;
  if (flags & FLAG_METHODS)
    events |= EVENT_CALL | EVENT_RETURN;
  if (flags & FLAG_C_CALLS)
    events |= EVENT_C_CALL | EVENT_C_RETURN;
  if (flags & FLAG_RAISE)
    events |= EVENT_RAISE;
  return events;
}

static uint32_t inner_events(void) {
  uint32_t flags = state.config.flags, events = 0;
  if (flags & FLAG_GC)
    events |= EVENT_GC_ENTER | EVENT_GC_EXIT;
  if (flags & FLAG_OBJECTS)
    events |= EVENT_NEWOBJ;
  return state.config.mode == MODE_EMPTY ? 0 : events;
}

static void add_hooks(void) {
  state.hook = hooks[state.config.mode];
  if (method_events())
    rb_add_event_hook2(state.hook, method_events(), marker, HOOK_SAFE | HOOK_RAW_ARG);
  if (inner_events())
    rb_add_event_hook2(hook_inner, inner_events(), marker, HOOK_SAFE | HOOK_RAW_ARG);
  if (state.evaluating && !hooks_fibers) {
    rb_add_event_hook2(hook_fiber, EVENT_FIBER_SWITCH, marker, HOOK_SAFE | HOOK_RAW_ARG);
    hooks_fibers = 1;
  }
}

static void remove_hooks(void) {
  if (state.hook)
    rb_remove_event_hook_with_data(state.hook, marker);
  rb_remove_event_hook_with_data(hook_inner, marker);
}

/* The selectors, as agent.rb packed them: each within the string? */
static int check_selectors(const char *at, size_t size, uint32_t count) {
  if (count > MAX_SELECTORS)
    return EINVAL;
  for (uint32_t i = 0; i < count; i++) {
    const struct selector *selector = (const struct selector *)at;
    if (size < sizeof(*selector))
      return EINVAL;
    size_t length = selector_size(selector);
    if (size < length)
      return EINVAL;
    state.programs[i + 1].wants = (uint8_t)selector->wants;
    state.evaluating |= selector->wants != 0;
    at += length;
    size -= length;
  }
  return size ? EINVAL : 0;
}

static int prepare(const char *packed, size_t size) {
  struct header header;
  if (size < sizeof(state.config))
    return EINVAL;
  __builtin_memcpy(&state.config, packed, sizeof(state.config));
  packed += sizeof(state.config);
  size -= sizeof(state.config);
  const struct config *config = &state.config;
  if (config->mode > MODE_SITES || !config->max_methods || !config->max_streams ||
      (config->ring_records & (config->ring_records - 1)))
    return EINVAL;
  int error = check_selectors(packed, size, config->selectors);
  if (!error)
    error = lay_out(&header);
  if (!error)
    error = allocate_private(packed, size);
  if (!error)
    error = allocate_shared(&header);
  if (error)
    return error;
  point_into(&header);
  state.methods_used = state.blocks_used = 1;
  state.has_offsets = (int)config->has_offsets;
  state.to_verify = 256;
  state.selecting = (config->flags & FLAG_SELECT) != 0;
  state.sites = config->mode == MODE_SITES || (config->flags & FLAG_SITES);
  if (config->flags & FLAG_GC)
    state.gc_method = key_of(0, 0, KIND_GC)->method;
  return 0;
}

/* arm(packed): [data, control, size, size of control, sealed], or an errno. */
static VALUE native_arm(VALUE self, VALUE packed) {
  (void)self;
  if (!alive)
    return rb_ull2inum(ENOTSUP);
  if (alive->armed)
    return rb_ull2inum(EBUSY);
  size_t size = rb_num2ull(rb_str_length(packed)); /* it is binary */
  const char *bytes = rb_string_value_ptr(&packed);
  int error = prepare(bytes, size);
  int fds[] = {state.data_fd, state.control_fd};
  if (!error && (seal(fds[1], SEAL_SEAL | SEAL_SHRINK | SEAL_GROW) ||
                 seal(fds[0], SEAL_SHRINK | SEAL_GROW)))
    error = errno;
  if (error) {
    release(0);
    for (int i = 0; i < 2; i++)
      if (fds[i] >= 0)
        close(fds[i]);
    return rb_ull2inum((unsigned)error);
  }
  int sealed = seal(fds[0], SEAL_FUTURE_WRITE) == 0; /* Linux 5.1 */
  seal(fds[0], SEAL_SEAL);
  uint64_t sizes[] = {state.data_size, state.control_size};
  alive->armed = 1;
  arming++;
  add_hooks();
  VALUE answer = rb_ary_new();
  for (int i = 0; i < 2; i++)
    rb_ary_push(answer, rb_ull2inum((unsigned)fds[i]));
  for (int i = 0; i < 2; i++)
    rb_ary_push(answer, rb_ull2inum(sizes[i]));
  return rb_ary_push(answer, rb_ull2inum((unsigned)sealed));
}

/* What was dropped at the very end stands in no record. */
static void finish_streams(void) {
  for (uint32_t i = 0; i < state.streams_used; i++)
    STORE(state.streams[i].shared->dropped, state.streams[i].dropped);
}

/* stop: take the hooks out; what they wrote can still be asked for. */
static VALUE native_stop(VALUE self) {
  (void)self;
  if (!state.header)
    return FALSE_VALUE;
  remove_hooks();
  finish_streams();
  RELEASE(state.header->state, STATE_DISARMED);
  return rb_ull2inum(1);
}

/* release: forget it all. */
static VALUE native_release(VALUE self) {
  (void)self;
  if (!state.header)
    return FALSE_VALUE;
  remove_hooks();
  alive->armed = 0;
  release(0);
  return rb_ull2inum(1);
}

/* In a child: alive->armed was wiped, and there is no shared memory. */
static VALUE native_forget(VALUE self) {
  (void)self;
  if (hooks_fibers)
    rb_remove_event_hook_with_data(hook_fiber, marker);
  hooks_fibers = 0;
  for (int i = 0; i < MAX_EVALUATIONS; i++)
    evaluations[i] = (struct evaluation){.serial = 0};
  /* None of them came along; those that begin here say so. */
  for (int i = 0; i < MAX_OWN_THREADS; i++)
    own_threads[i] = 0;
  if (!state.header)
    return FALSE_VALUE;
  remove_hooks();
  release(1);
  return rb_ull2inum(1);
}

/* ------------------------------------------------------------------- answers */

static VALUE native_clock(VALUE self, VALUE clock) {
  (void)self;
  uint32_t kind = (uint32_t)rb_num2ull(clock);
  uint64_t best = UINT64_MAX, now = 0, ns = 0;
  for (int i = 0; i < 5; i++) { /* the pair that was least interrupted */
    uint64_t before = ticks_of(kind), at = monotonic_ns(), after = ticks_of(kind);
    if (after - before < best) {
      best = after - before;
      now = before + best / 2;
      ns = at;
    }
  }
  VALUE pair = rb_ary_new();
  rb_ary_push(pair, rb_ull2inum(now));
  return rb_ary_push(pair, rb_ull2inum(ns));
}

/* In the order of the header. */
static VALUE native_counters(VALUE self) {
  (void)self;
  if (!state.header)
    return FALSE_VALUE;
  const struct header *h = state.header;
  uint64_t counters[] = {h->state,     state.methods_used, state.blocks_used, state.streams_used,
                         h->conditions, h->no_stream,      h->no_method,      h->too_deep,
                         h->orphans,   h->abandoned,       h->no_block,    h->no_values};
  VALUE answer = rb_ary_new();
  for (size_t i = 0; i < sizeof(counters) / sizeof(counters[0]); i++)
    rb_ary_push(answer, rb_ull2inum(counters[i]));
  return answer;
}

/* method_at(i): [kind, class or false, name or false, class of definition], or false. */
static VALUE native_method_at(VALUE self, VALUE index) {
  (void)self;
  uint64_t i = rb_num2ull(index);
  if (!state.header || !i || i >= state.methods_used)
    return FALSE_VALUE;
  const struct known *known = &state.known[i];
  VALUE answer = rb_ary_new();
  ID id = known->id_and_kind >> 3;
  rb_ary_push(answer, rb_ull2inum(known->id_and_kind & 7));
  rb_ary_push(answer, known->owner);
  rb_ary_push(answer, id ? rb_id2sym(id) : FALSE_VALUE);
  return rb_ary_push(answer, known->definer);
}

/* refinement(module): what it refines and where, each nil if it does not. */
static VALUE native_refinement(VALUE self, VALUE module) {
  (void)self;
  VALUE answer = rb_ary_new();
  if (!is_object(module) || type_of(module) != TYPE_MODULE)
    return answer;
  rb_ary_push(answer, rb_attr_get(module, rb_intern("__refined_class__")));
  return rb_ary_push(answer, rb_attr_get(module, rb_intern("__defined_at__")));
}

/* attached(class): what a singleton class is of, or false. */
static VALUE native_attached(VALUE self, VALUE klass) {
  (void)self;
  if (!is_object(klass) || !is_singleton(klass))
    return FALSE_VALUE;
  return attached_to(klass);
}

static VALUE native_id_of(VALUE self, VALUE symbol) {
  (void)self;
  return rb_ull2inum(rb_to_id(symbol));
}

/* own(yes): whether the calling thread is the agent's. */
static VALUE native_own(VALUE self, VALUE yes) {
  (void)self;
  VALUE thread = rb_thread_current();
  for (int i = 0; i < MAX_OWN_THREADS; i++)
    if (own_threads[i] == thread)
      own_threads[i] = 0;
  for (int i = 0; i < MAX_OWN_THREADS && yes; i++)
    if (!own_threads[i]) {
      own_threads[i] = thread;
      break;
    }
  for (uint32_t i = 0; state.streams && i < state.streams_used; i++)
    if (state.streams[i].thread == thread)
      state.streams[i].ignored = yes != FALSE_VALUE;
  return yes;
}

/* use(module, exception, Thread#raise, Thread#stop?): what evaluates, and what ends it. */
static VALUE native_use(VALUE self, VALUE module, VALUE exception, VALUE raising,
                        VALUE asleep) {
  (void)self;
  expressions = module;
  stop_class = exception;
  raise_method = raising;
  asleep_method = asleep;
  return module;
}

static void *wiped_by_fork(void) {
  void *page = map_private(4096);
  if (page && madvise(page, 4096, MADV_WIPEONFORK)) { /* Linux before 4.14 */
    munmap(page, 4096);
    return NULL;
  }
  return page;
}

__attribute__((visibility("default"))) void Init_agent_hook(void) {
  VALUE outer = rb_define_module_under(rb_define_module("Tracepoint"), "Agent");
  VALUE native = rb_define_module_under(outer, "Native");
  alive = wiped_by_fork();
  state.data_fd = state.control_fd = -1;
  attached_name = rb_intern("__attached__");
  of_name = rb_intern("of");
  flush_name = rb_intern("flush");
  bind_call_name = rb_intern("bind_call");
  nil_value = rb_ary_pop(rb_ary_new());
  VALUE *kept[] = {&expressions, &stop_class, &raise_method, &asleep_method};
  for (int i = 0; i < 4; i++) {
    *kept[i] = nil_value;
    rb_gc_register_address(kept[i]);
  }
  marker = rb_data_object_wrap(rb_cObject, &marker, mark_classes, NULL);
  rb_gc_register_address(&marker);
  rb_define_singleton_method(native, "arm", native_arm, 1);
  rb_define_singleton_method(native, "stop", native_stop, 0);
  rb_define_singleton_method(native, "release", native_release, 0);
  rb_define_singleton_method(native, "forget", native_forget, 0);
  rb_define_singleton_method(native, "clock", native_clock, 1);
  rb_define_singleton_method(native, "counters", native_counters, 0);
  rb_define_singleton_method(native, "method_at", native_method_at, 1);
  rb_define_singleton_method(native, "attached", native_attached, 1);
  rb_define_singleton_method(native, "refinement", native_refinement, 1);
  rb_define_singleton_method(native, "id_of", native_id_of, 1);
  rb_define_singleton_method(native, "own", native_own, 1);
  rb_define_singleton_method(native, "watch", native_watch, 0);
  rb_define_singleton_method(native, "use", native_use, 4);
}

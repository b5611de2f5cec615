/* Hooks and memory, from arming to release. */
#include <errno.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "memory.h"
#include "methods.h"

void mark_classes(void *unused) {
  (void)unused;
  VALUE last = 0;
  mark_evaluations();
  for (uint32_t i = 1; i < state.methods_used; i++) {
    const struct known *known = &state.known[i];
    if (known->owner != last && is_object(known->owner))
      rb_gc_mark(known->owner); /* which also pins it */
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
    header->places_offset = at;
    header->digits = config->flags & FLAG_FINE ? 3 : 2;
    header->place_size = sizeof(*state.places);
    at = aligned(at + (uint64_t)config->max_blocks * sizeof(*state.places));
    header->blocks_offset = at;
    header->blocks_capacity = config->max_blocks;
    header->block_size = sizeof(*state.blocks);
    at = aligned(at + (uint64_t)config->max_blocks * sizeof(*state.blocks));
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
  ADD_SEALS = 1033, /* of fcntl; <fcntl.h> defines it only with the C library's macros */
  SEAL_SEAL = 0x1,
  SEAL_SHRINK = 0x2,
  SEAL_GROW = 0x4,
  SEAL_FUTURE_WRITE = 0x10,
};

static int memory_file(const char *name, uint64_t size) {
  struct rlimit limit;
  /* Beyond this limit, ftruncate raises SIGXFSZ, which kills the process. */
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

/* Neither children nor core files include this memory. */
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

/* in_child: the shared memory is not mapped; other memory may be at its address. */
static void release(int in_child) {
  for (uint32_t i = 0; state.streams && i < state.streams_used; i++)
    munmap(state.streams[i].calls, calls_size() + active_size());
  if (state.streams)
    munmap(state.streams, state.streams_size);
  if (state.all_keys)
    munmap(state.all_keys, state.keys_size);
  if (state.known)
    munmap(state.known, state.known_size);
  if (state.selectors)
    munmap(state.selectors, state.selectors_size);
  drop_histograms();
  if (state.data && !in_child)
    munmap(state.data, state.data_size);
  if (state.control && !in_child)
    munmap(state.control, state.control_size);
  state = (struct state){.data_fd = -1, .control_fd = -1};
}

static int allocate_private(const char *selectors, size_t selectors_size) {
  state.streams_size = state.config.max_streams * sizeof(struct stream);
  state.streams = map_private(state.streams_size);
  state.selectors_size = selectors_size + 8;
  state.selectors = map_private(state.selectors_size);
  state.known_size = state.config.max_methods * sizeof(struct known);
  state.known = map_private(state.known_size);
  if (!make_keys() || !state.known || !state.streams || !state.selectors)
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
  if (header->places_offset) {
    state.places = (uint64_t *)(state.data + header->places_offset);
    state.blocks = (uint8_t(*)[BLOCK_COUNTERS])(state.data + header->blocks_offset);
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
  if (flags & FLAG_METHODS && !(flags & FLAG_TARGETS))
    events |= EVENT_CALL | EVENT_RETURN;
  if (flags & FLAG_C_CALLS)
    events |= EVENT_C_CALL | EVENT_C_RETURN;
  if (has_entries_alone())
    events &= ~(uint32_t)(EVENT_RETURN | EVENT_C_RETURN);
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
  state.hook = hooks[has_entries_alone() ? MODE_ENTRIES : state.config.mode];
  if (method_events())
    rb_add_event_hook2(state.hook, method_events(), marker, HOOK_SAFE | HOOK_RAW_ARG);
  if (inner_events() && no_inner)
    state.header->conditions |= CONDITION_NO_INNER;
  else if (inner_events()) {
    state.inner = hook_inner;
    rb_add_event_hook2(state.inner, inner_events(), marker, HOOK_SAFE | HOOK_RAW_ARG);
  }
  if (state.evaluating)
    hook_fibers();
}

/* Check that each selector, as packed by agent/arming.rb, lies within the string. */
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
  if (!error && !make_histograms(&header))
    error = ENOMEM;
  if (!error)
    error = allocate_shared(&header);
  if (error)
    return error;
  point_into(&header);
  state.methods_used = state.blocks_used = 1;
  state.has_offsets = (int)config->has_offsets;
  state.to_check = state.to_verify = FIRST;
  state.selecting = (config->flags & FLAG_SELECT) != 0;
  state.sites = config->mode == MODE_SITES || (config->flags & FLAG_SITES);
  if (config->flags & FLAG_GC)
    state.gc_method = key_of(0, 0, KIND_GC)->method;
  return 0;
}

/* arm(packed): return [data, control, size, size of control, sealed], or an errno. */
VALUE native_arm(VALUE self, VALUE packed) {
  (void)self;
  if (!alive)
    return rb_ull2inum(ENOTSUP);
  if (alive->armed)
    return rb_ull2inum(EBUSY);
  size_t size = rb_num2ull(rb_str_length(packed)); /* the string is binary */
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
  int sealed = seal(fds[0], SEAL_FUTURE_WRITE) == 0; /* since Linux 5.1 */
  seal(fds[0], SEAL_SEAL);
  uint64_t sizes[] = {state.data_size, state.control_size};
  alive->armed = 1;
  arming++;
  begin_targets();
  add_hooks();
  VALUE answer = rb_ary_new();
  for (int i = 0; i < 2; i++)
    rb_ary_push(answer, rb_ull2inum((unsigned)fds[i]));
  for (int i = 0; i < 2; i++)
    rb_ary_push(answer, rb_ull2inum(sizes[i]));
  return rb_ary_push(answer, rb_ull2inum((unsigned)sealed));
}

/* No record reports events that were dropped at the very end. */
static void finish_streams(void) {
  for (uint32_t i = 0; i < state.streams_used; i++)
    STORE(state.streams[i].shared->dropped, state.streams[i].dropped);
}

/* stop: remove the hooks. Their results can still be read. */
VALUE native_stop(VALUE self) {
  (void)self;
  if (!state.header)
    return FALSE_VALUE;
  remove_hooks();
  tell_other_ractors();
  finish_streams();
  RELEASE(state.header->state, STATE_DISARMED);
  return rb_ull2inum(1);
}

/* inner(yes): set whether garbage collections and new objects may be hooked, now and later. */
VALUE native_inner(VALUE self, VALUE yes) {
  (void)self;
  no_inner = yes == FALSE_VALUE;
  if (no_inner && state.header && inner_events()) {
    rb_remove_event_hook_with_data(hook_inner, marker);
    state.header->conditions |= CONDITION_NO_INNER;
  }
  return yes;
}

static void hook_nothing(VALUE data, const struct trace_arg *arg) {
  (void)data;
  (void)arg;
}

/* others: note that there are Ractors besides the main one. */
VALUE native_others(VALUE self) {
  (void)self;
  if (state.header)
    state.header->conditions |= CONDITION_OTHER_RACTORS;
  return FALSE_VALUE;
}

VALUE native_beats(VALUE self) {
  (void)self;
  return rb_ull2inum(state.beats);
}

/* renew(beats): reinstall hooks, and note whether they were silent (agent/ractors.rb). */
VALUE native_renew(VALUE self, VALUE before) {
  (void)self;
  if (!state.header || !state.hook) /* already removed */
    return FALSE_VALUE;
  tell_other_ractors();
  int is_heard = state.beats != rb_num2ull(before);
  uint32_t flags = state.config.flags;
  int is_hooked = (flags & FLAG_METHODS && !(flags & FLAG_TARGETS)) ||
                  (flags & FLAG_OBJECTS && !no_inner);
  if (is_hooked && !is_heard && state.config.mode != MODE_EMPTY)
    state.header->conditions |= CONDITION_SILENT;
  rb_add_event_hook2(hook_nothing, EVENT_THREAD_END, marker, HOOK_SAFE | HOOK_RAW_ARG);
  rb_remove_event_hook_with_data(hook_nothing, marker);
  return before;
}

/* release: free everything that arming allocated. */
VALUE native_release(VALUE self) {
  (void)self;
  if (!state.header)
    return FALSE_VALUE;
  remove_hooks();
  alive->armed = 0;
  release(0);
  return rb_ull2inum(1);
}

/* In a child: alive->armed was wiped, and the shared memory is not mapped. */
static void forget(void) {
  know_main_ractor(); /* the main Ractor may be another one here */
  forget_evaluations();
  /* The parent's threads do not exist here; new ones register themselves. */
  for (int i = 0; i < MAX_OWN_THREADS; i++)
    own_threads[i] = 0;
  if (!state.header)
    return;
  remove_hooks();
  release(1);
}

/* Guard every native entry: after any fork, the child forgets what its parent armed. */
void check_fork(void) {
  if (!alive || alive->is_known)
    return;
  alive->is_known = 1;
  is_forked = 1;
  forget();
}

/* forget: note that Ruby knows about the fork. */
VALUE native_forget(VALUE self) {
  (void)self;
  is_forked = 0;
  return FALSE_VALUE;
}

/* forked: return whether this is the child of a fork that Ruby does not know about. */
VALUE native_forked(VALUE self) {
  (void)self;
  return is_forked ? rb_ull2inum(1) : FALSE_VALUE;
}

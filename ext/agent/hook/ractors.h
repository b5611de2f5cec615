/*
 * Other Ractors than the main one. A hook belongs to the Ractor whose code adds it, and
 * which events are traced at all is the same for all of them; so what the others lack is
 * an entry in their own lists, and we put it there.
 *
 * Ruby has no call for that: the entry is linked by hand, at the head, by one atomic
 * store. It is never unlinked, as its owner may be reading it: while nothing is armed it
 * is on no events, which costs nothing, and the next arming takes it again. Nor does Ruby
 * free it with its Ractor (rb_hook_list_free, vm_trace.c: only what is marked as deleted),
 * so that it may always be written to; what a Ractor had that is gone the next one takes.
 * Only at the end of a child that was forked in that Ractor does Ruby, so it is malloc's.
 */

/* rb_event_hook_t, rb_hook_list_t, and how rb_ractor_t begins: 3.1 to 3.4. */
struct event_hook {
  uint32_t flags, events;
  void (*function)();
  VALUE data;
  struct event_hook *next;
  void *thread;
  unsigned line;
};

struct event_list {
  struct event_hook *first;
  uint32_t events;
};

struct ractor {
  VALUE self;
  uint32_t id; /* never used again */
  struct event_list list;
};

enum { METHODS, INNER, HOOKS, MOST_JOINED = 1 << 16 };

/* A Ractor that has our entries; id 0: one that is gone had them. */
static struct joined {
  uint32_t id, census;
  struct event_hook *hooks[HOOKS];
} *joined;
static uint32_t joined_used, joined_now, censuses, running_ec, thread_ractor;
static int is_laid_out; /* rb_ractor_t is as it is here */
static const void *main_one;
static void *starts; /* Ruby's, of the hook on threads that start */
static int keeps_starts;

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

static void has_come_about(uint32_t condition) {
  int alone = begin_alone();
  if (state.header)
    state.header->conditions |= condition;
  end_alone(alone);
}

static void hook_nothing(VALUE data, const struct trace_arg *arg) {
  (void)data;
  (void)arg;
}

static void hook_inner_apart(VALUE data, const struct trace_arg *arg) { hook_inner(data, arg); }

/* struct RTypedData's */
static void *data_of(VALUE object) {
  return is_object(object) && type_of(object) == TYPE_DATA ? ((void **)object)[4] : NULL;
}

static struct ractor *ractor_of(VALUE object) {
  struct ractor *found = data_of(object);
  return found && found->self == object ? found : NULL;
}

/* Is rb_ractor_t as we think? A hook that was just added has to be the first one. */
static int check_layout(VALUE main_ractor) {
  struct ractor *ractor = ractor_of(main_ractor);
  if (!ractor)
    return 0;
  rb_add_event_hook2(hook_nothing, EVENT_THREAD_END, marker, HOOK_SAFE | HOOK_RAW_ARG);
  const struct event_hook *first = ractor->list.first;
  int is = reads((const char *)&first->function, (uint64_t)hook_nothing) &&
           reads((const char *)&first->data, marker) && first->events == EVENT_THREAD_END &&
           first->flags == (HOOK_SAFE | HOOK_RAW_ARG) && !first->thread && !first->line &&
           ractor->list.events & EVENT_THREAD_END;
  rb_remove_event_hook_with_data(hook_nothing, marker);
  return is;
}

static struct joined *joined_as(uint32_t id) {
  for (uint32_t i = joined_used; i > 0; i--)
    if (joined[i - 1].id == id)
      return &joined[i - 1];
  return NULL;
}

static void link_hook(struct event_list *list, struct event_hook *hook) {
  hook->next = __atomic_load_n(&list->first, __ATOMIC_ACQUIRE);
  while (!__atomic_compare_exchange_n(&list->first, &hook->next, hook, 0, __ATOMIC_RELEASE,
                                      __ATOMIC_ACQUIRE))
    ;
}

static void hook_ractor(struct ractor *ractor, struct joined *entry) {
  uint32_t events[HOOKS] = {method_events(), no_inner ? 0 : inner_events()};
  entry->census = censuses;
  for (int i = 0; i < HOOKS; i++) {
    STORE(entry->hooks[i]->events, events[i]);
    __atomic_or_fetch(&ractor->list.events, events[i], __ATOMIC_RELEASE);
  }
}

static struct joined *new_joined(void) {
  struct joined *entry = joined_as(0);
  if (entry || joined_used == MOST_JOINED)
    return entry;
  static const hook_function functions[HOOKS] = {hook_apart, hook_inner_apart};
  struct event_hook *made[HOOKS];
  for (int i = 0; i < HOOKS; i++) {
    if (!(made[i] = malloc(sizeof(*made[i]))))
      return NULL;
    *made[i] = (struct event_hook){
        .flags = HOOK_SAFE | HOOK_RAW_ARG, .function = (void (*)())functions[i], .data = marker};
  }
  joined[joined_used] = (struct joined){0, 0, {made[METHODS], made[INNER]}};
  return &joined[joined_used++];
}

/* With the lock: its own from an earlier time, or another one. */
static struct joined *entry_of(struct ractor *ractor) {
  struct joined *entry = joined_as(ractor->id);
  if (entry || !(entry = new_joined()))
    return entry;
  entry->id = ractor->id;
  joined_now++;
  for (int i = 0; i < HOOKS; i++)
    link_hook(&ractor->list, entry->hooks[i]);
  return entry;
}

/*
 * Is time on a CPU asked for, and known there? From 3.3 on a native thread is that of
 * several threads of Ractors, and each of them changes from one to another.
 */
static int has_clocks(void) {
  return !(state.config.flags & FLAG_CPU) || !rb_internal_thread_remove_event_hook;
}

/* From now on its events are ours, too. Nothing here may stop this thread. */
static int join_ractor(struct ractor *ractor) {
  if (!is_laid_out || !ractor)
    return 0;
  parallel = 1; /* set by the main one, if this is the first */
  int alone = begin_alone();
  int on = is_on();
  struct joined *entry = on && has_clocks() ? entry_of(ractor) : NULL;
  if (entry)
    hook_ractor(ractor, entry);
  end_alone(alone);
  return entry || !on;
}

/* With the lock. */
static void leave_ractors(void) {
  for (uint32_t i = 0; i < joined_used; i++)
    for (int k = 0; k < HOOKS; k++)
      STORE(joined[i].hooks[k]->events, 0);
}

static void leave_inner(void) {
  int alone = begin_alone();
  for (uint32_t i = 0; i < joined_used; i++)
    STORE(joined[i].hooks[INNER]->events, 0);
  end_alone(alone);
}

/* census: those who have not joined again by the next `join` are gone. */
static VALUE native_census(VALUE self) {
  (void)self;
  int alone = begin_alone();
  censuses++;
  end_alone(alone);
  return FALSE_VALUE;
}

/* joined: how many Ractors have our entries, as far as is known. */
static VALUE native_joined(VALUE self) {
  (void)self;
  return rb_ull2inum(joined_now);
}

static void forget_gone(void) {
  int alone = begin_alone();
  joined_now = 0;
  for (uint32_t i = 0; i < joined_used; i++) {
    if (joined[i].census == censuses) {
      joined_now++;
      continue;
    }
    joined[i].id = 0;
    for (int k = 0; k < HOOKS; k++)
      STORE(joined[i].hooks[k]->events, 0);
  }
  end_alone(alone);
}

/* Where rb_thread_t has its Ractor: near its beginning. */
static void find_thread_ractor(const void *ractor) {
  void *const *thread = data_of(rb_thread_current());
  for (uint32_t i = 0; thread && i < 8 && !thread_ractor; i++)
    if (thread[i] == ractor)
      thread_ractor = i;
}

/*
 * From 3.3 on Ruby tells of a thread before it makes it, in the one that makes it. Nothing
 * that Ruby might stop this thread for may be done here.
 */
static void started(uint32_t event, const VALUE *thread, void *data) {
  (void)event;
  (void)data;
  if (!alive->armed)
    return;
  struct ractor *ractor = ((void **)data_of(*thread))[thread_ractor];
  if (ractor != main_one && !join_ractor(ractor))
    has_come_about(CONDITION_LATE_RACTOR);
}

/* join(main, ractors): how many of them are not seen. */
static VALUE native_join(VALUE self, VALUE main_ractor, VALUE ractors) {
  (void)self;
  size_t unseen = 0;
  if (!joined)
    joined = map_private(MOST_JOINED * sizeof(*joined));
  if (joined && !is_laid_out)
    is_laid_out = check_layout(main_ractor);
  main_one = ractor_of(main_ractor);
  for (VALUE ractor; is_object(ractor = rb_ary_pop(ractors));)
    unseen += ractor != main_ractor && !join_ractor(ractor_of(ractor));
  forget_gone();
  return rb_ull2inum(unseen);
}

/*
 * Where rb_ractor_t has the ec that runs, which it has not yet while its thread is being
 * made: of this Ractor it is the one that is at an event.
 */
static uint32_t find_running_ec(const struct trace_arg *arg) {
  VALUE object = rb_funcallv(rb_cRactor, rb_intern("current"), 0, NULL);
  struct ractor *ractor = ractor_of(object);
  size_t size = ractor && malloc_usable_size ? malloc_usable_size(ractor) : 0;
  for (size_t at = sizeof(*ractor); at + 8 <= size; at += 8)
    if (*(const char *const *)((const char *)ractor + at) == arg->ec)
      return (uint32_t)at;
  return 0;
}

/* A Ractor is made, in any of them: nearly always before its thread runs. */
static void born(VALUE tracepoint, void *data) {
  (void)data;
  struct trace_arg *arg = rb_tracearg_from_tracepoint(tracepoint);
  if (!alive->armed || !is_laid_out)
    return;
  VALUE object = rb_tracearg_return_value(arg);
  const char *ractor = (const char *)ractor_of(object);
  if (!ractor)
    return; /* it was not made */
  if (!running_ec)
    running_ec = find_running_ec(arg);
  int is_joined = join_ractor(ractor_of(object));
  if (!is_joined || !running_ec || *(const char *const *)(ractor + running_ec))
    has_come_about(CONDITION_LATE_RACTOR);
}

/*
 * births(tells): see to those that begin; does this Ruby tell of threads before it makes
 * them? If not, a TracePoint to be enabled for Ractor.new.
 */
static VALUE native_births(VALUE self, VALUE tells) {
  (void)self;
  if (tells == FALSE_VALUE)
    return rb_tracepoint_new(FALSE_VALUE, EVENT_RETURN, born, NULL);
  if (main_one)
    find_thread_ractor(main_one);
  if (thread_ractor && !starts)
    starts = rb_internal_thread_add_event_hook(started, EVENT_THREAD_STARTED, NULL);
  return nil_value;
}

/* A child may not take it out: the lock that Ruby has for it may be held for good. */
static VALUE native_no_births(VALUE self) {
  (void)self;
  if (starts && !keeps_starts)
    rb_internal_thread_remove_event_hook(starts);
  if (!keeps_starts)
    starts = NULL;
  return FALSE_VALUE;
}

/*
 * Execution contexts: the Ruby thread and fiber that a task runs.
 *
 *   FSBASE_OFFSET  in struct task_struct, from BTF
 *   threads        map from the ids of a task to its rb_thread_t, if TLS is not used
 */

/* A process and its Ruby. */
struct ruby {
  s64 tls;        /* from fs base: < 0: of the EC, > 0: of the thread; 0: unknown */
  u64 gc_place;   /* word with the state of the collector; 0: unknown */
  u64 gc_mask;
  u64 gc_count;   /* word with the number of started collections; 0: unknown */
  u64 local;      /* VM_ENV_FLAG_LOCAL */
  u64 running;    /* up to 2.7: word with the thread that holds the GVL */
  u32 ec_stack, ec_size, ec_cfp, ec_thread, ec_fiber; /* in words */
  u32 words;      /* of a control frame */
  u32 pc, sp, iseq, ep, jit; /* in words; jit == words: the member does not exist */
  u32 has_zjit;   /* the pc of an innermost frame is stale */
  u32 th_ec;      /* in bytes, in a thread */
  u32 imemo_mask, imemo_ment; /* flags & mask == ment: a method entry */
  u32 follows;    /* children are walked, too */
  u32 th_ractor, ractor_ec; /* in bytes: ractor of a thread, EC with the ractor's GVL */
  u32 gvl_queue, gvl_node; /* in bytes, in a ractor and in a thread; 0: unknown */
  u32 ractor_objspace, gc_flags; /* in bytes, of a ractor's collector; 0: shared */
  u64 queue;      /* up to 2.7: address of the GVL's queue */
  u64 zjit;       /* word that is not 0 while ZJIT uses JITFrames; 0: never */
  u64 holder;     /* of the GVL: offset in a ractor; up to 2.7, address */
};
CHECK_SIZE(ruby); CHECK(ruby, tls); CHECK(ruby, gc_place); CHECK(ruby, gc_mask);
CHECK(ruby, gc_count); CHECK(ruby, local); CHECK(ruby, running); CHECK(ruby, ec_stack);
CHECK(ruby, ec_size); CHECK(ruby, ec_cfp); CHECK(ruby, ec_thread);
CHECK(ruby, ec_fiber); CHECK(ruby, words); CHECK(ruby, pc); CHECK(ruby, sp);
CHECK(ruby, iseq); CHECK(ruby, ep); CHECK(ruby, jit); CHECK(ruby, has_zjit);
CHECK(ruby, th_ec); CHECK(ruby, imemo_mask); CHECK(ruby, imemo_ment);
CHECK(ruby, follows); CHECK(ruby, th_ractor); CHECK(ruby, ractor_ec);
CHECK(ruby, gvl_queue); CHECK(ruby, gvl_node); CHECK(ruby, ractor_objspace);
CHECK(ruby, gc_flags); CHECK(ruby, queue); CHECK(ruby, zjit); CHECK(ruby, holder);

static __always_inline u64 fsbase_of(u64 task) {
  u64 fsbase = 0;
  read_kernel(&fsbase, sizeof fsbase, (void *)(task + AT_LOAD(FSBASE_OFFSET)));
  return fsbase;
}

#define NOT_KNOWN 1

/* Return this task's execution context, 0 if it has none, or NOT_KNOWN. */
static __always_inline u64 find_ec(struct ruby *ruby, u64 fsbase, u64 ids) {
  u64 word = 0;
  if (ruby->tls) {
    read_user(&word, sizeof word, (void *)(fsbase + ruby->tls));
  } else {
    u64 *thread = LOOKUP(threads, &ids);
    if (!thread)
      return NOT_KNOWN;
    word = *thread;
  }
  if (ruby->tls >= 0 && word &&
      read_user(&word, sizeof word, (void *)(word + ruby->th_ec)))
    return 0;
  return word;
}

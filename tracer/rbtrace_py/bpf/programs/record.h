/*
 * Records values: in a dense histogram per series, or, with a key or many series, in
 * a count per group and sparse buckets.
 *
 *   BUCKETS  number of buckets of HdrHistogram(1, 3.6e12, 3)
 *   BY       0 no key, 1 a number, 2 a string
 *   DENSE    1: one array of BUCKETS per series
 *   OWN      number of the program's own slots; the key's slot follows them
 *   VALUES   0: only count; 1: durations; 2: signed integers; 3: doubles
 */
#define LARGEST 3600000000000ULL

#define KEY_SLOT OWN

#if !DENSE

struct key {
  u32 series;
  u32 kind; /* 0 a key, 1 a string that is nil or unreadable, 2 a long string */
#if BY == 2
  u64 text[KEY_TEXT / 8]; /* the last word of a long string is its hash */
#else
  u64 number;
#endif
};
CHECK(key, series); CHECK(key, kind);
_Static_assert(sizeof(struct key) == SIZE_key + (BY == 2 ? KEY_TEXT : 8),
               "group_recorder.py: key_size");

struct group {
  u64 born; /* together with cpu, a unique number for its buckets */
  u64 cpu;
  u64 count; /* only without VALUES; else it is the sum of the buckets */
  u64 total;
};
CHECK_SIZE(group); CHECK(group, born); CHECK(group, cpu); CHECK(group, count);
CHECK(group, total);

struct bucket {
  u64 born;
  u32 cpu;
  u32 place;
};
CHECK_SIZE(bucket); CHECK(bucket, born); CHECK(bucket, cpu); CHECK(bucket, place);

struct group_number {
  u64 born;
  u64 cpu;
};
CHECK_SIZE(group_number); CHECK(group_number, born); CHECK(group_number, cpu);
#endif

/*
 * Return the log-linear bucket of 3 significant digits. The bit length is computed by
 * halving, because the BPF back end cannot count leading zeros.
 */
static __always_inline u32 bucket_of(u64 value) {
  u64 y = (value | 2047) >> 11;
  u64 rest = y;
  u32 bits = 0;
  if (rest >> 32) { bits += 32; rest >>= 32; }
  if (rest >> 16) { bits += 16; rest >>= 16; }
  if (rest >> 8) { bits += 8; rest >>= 8; }
  if (rest >> 4) { bits += 4; rest >>= 4; }
  if (rest >> 2) { bits += 2; rest >>= 2; }
  if (rest >> 1) { bits += 1; rest >>= 1; }
  bits += rest;
  return (bits << 10) + (u32)(value >> bits);
}

static __always_inline u32 place_of(u64 value) {
#if VALUES == 3
  return (u32)(value >> 42);
#elif VALUES == 2
  return (s64)value < 0 ? bucket_of(-value) | 0x80000000u : bucket_of(value);
#else
  return bucket_of(value);
#endif
}

#if !DENSE
#if BY == 2
static __always_inline u64 hash_words(u64 hash, const u64 *words) {
#pragma unroll
  for (int i = 0; i < KEY_TEXT / 8; i++) {
    hash = (hash ^ words[i]) * 0x9e3779b97f4a7c15ULL;
    hash ^= hash >> 32;
  }
  return hash;
}

/*
 * Put the hash of up to KEY_CHUNKS pieces into the key of a string that exceeds
 * KEY_TEXT. Read piece by piece, because the stack is small and scratch memory cannot be
 * used (see trace.c). Return false if a piece could not be read.
 */
static __always_inline bool hash_text(struct key *key, u64 pointer) {
  u64 hash = hash_words(0, key->text);
  int length = KEY_TEXT;
  for (u32 i = 1; i < KEY_CHUNKS && length == KEY_TEXT; i++) {
    u64 chunk[KEY_TEXT / 8] = {};
    pointer += KEY_TEXT - 1;
    length = read_user_string(chunk, KEY_TEXT, (void *)pointer);
    hash = hash_words(hash, chunk);
  }
  key->kind = 2;
  key->text[KEY_TEXT / 8 - 1] = hash;
  return length >= 0;
}

/* Store a complete long key for the reader. */
static __always_inline void keep_text(struct group *group, u64 pointer) {
  struct group_number number = {.born = group->born, .cpu = group->cpu};
  u32 first = 0;
  void *text = LOOKUP(blank, &first);
  if (!text)
    return;
  INSERT(texts, &number, text);
  text = LOOKUP(texts, &number);
  if (text)
    read_user_string(text, KEY_WHOLE, (void *)pointer);
}
#endif

static __always_inline void fill_key(struct key *key, u64 *slots) {
#if BY == 1
  key->number = slots[KEY_SLOT];
#elif BY == 2
  u64 pointer = slots[KEY_SLOT];
  int length = -1;
  if (pointer)
    length = read_user_string(key->text, KEY_TEXT, (void *)pointer);
  if (length < 0 || (length == KEY_TEXT && !hash_text(key, pointer))) {
    __builtin_memset(key->text, 0, KEY_TEXT);
    key->kind = 1;
    key->text[0] = pointer != 0; /* 0: nil, 1: an invalid pointer */
  }
#endif
}

static __always_inline struct group *group_of(struct key *key, u64 *slots) {
  struct group *group = LOOKUP(groups, key);
  struct group fresh = {};
  if (group)
    return group;
  fresh.born = bpf_ktime_get_ns();
  fresh.cpu = bpf_get_smp_processor_id();
  /* Another processor may have been faster; then use its group. */
  if (INSERT(groups, key, &fresh) == 0) {
#if BY == 2
    if (key->kind == 2)
      keep_text(&fresh, slots[KEY_SLOT]);
#endif
  }
  return LOOKUP(groups, key);
}
#endif

static __always_inline void record(u32 series, u64 value, u64 *slots) {
#if DENSE && !VALUES
  u64 *total = LOOKUP(totals, &series);
  if (total)
    __sync_fetch_and_add(total, 1);
#elif DENSE
  u32 place = series * BUCKETS + bucket_of(value);
  u64 *cell = LOOKUP(histogram, &place);
  u64 *total = LOOKUP(totals, &series);
  if (cell)
    __sync_fetch_and_add(cell, 1);
  if (total)
    __sync_fetch_and_add(total, value);
#else
  struct key key = {};
  struct group *group;
  key.series = series;
  fill_key(&key, slots);
  group = group_of(&key, slots);
#if BY
  if (!group) /* keys beyond --max-keys; the reader initializes `born` */
    group = LOOKUP(others, &series);
#endif
  if (!group) {
    count_one(COUNTER_NO_ROOM);
    return;
  }
#if !VALUES
  __sync_fetch_and_add(&group->count, 1);
#else
  __sync_fetch_and_add(&group->total, value);
  struct bucket bucket = {};
  u64 *cell, zero = 0;
  bucket.born = group->born;
  bucket.cpu = (u32)group->cpu;
  bucket.place = place_of(value);
  cell = LOOKUP(buckets, &bucket);
  if (!cell) {
    INSERT(buckets, &bucket, &zero);
    cell = LOOKUP(buckets, &bucket);
  }
  if (cell)
    __sync_fetch_and_add(cell, 1);
  else
    count_one(COUNTER_NO_ROOM);
#endif
#endif
}

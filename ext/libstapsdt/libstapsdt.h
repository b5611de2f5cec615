/*
 * libstapsdt: USDT probes made at run time, for Linux.
 *
 * Two interfaces live here. The first, `sdt_*`, is the one to use: probes of
 * up to 12 operands, defined at any time, from any thread. The second is the
 * C interface of the original libstapsdt, kept call for call and field for
 * field, so that programs written for that library run against this one.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef LIBSTAPSDT_H
#define LIBSTAPSDT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ----------------------------------------------------------------- version */

/* The version of this header; sdt_version() is that of the library that is loaded. */
#define SDT_VERSION "0.2.0"
/* To compare: SDT_VERSION_NUMBER >= SDT_VERSION_OF(0, 2, 0) */
#define SDT_VERSION_OF(major, minor, patch)                                    \
  ((major) * 1000000 + (minor) * 1000 + (patch))
#define SDT_VERSION_NUMBER SDT_VERSION_OF(0, 2, 0)

/* "0.2.0"; never NULL. */
const char *sdt_version(void);

/* ------------------------------------------------------------------ limits */

#define SDT_MAX_OPERANDS 12
/* Provider, probe and operand names: 1 to 63 of A-Z a-z 0-9 _ */
#define SDT_MAX_NAME 63

/* ------------------------------------------------------------------ errors */

/*
 * Every code with its default message. Functions that return an int return
 * one of these; SDT_OK is 0.
 */
#define SDT_ERRORS(X)                                                          \
  X(SDT_OK, "no error")                                                        \
  X(SDT_ENAME, "a name must be 1 to 63 of A-Z a-z 0-9 _")                      \
  X(SDT_EOPERANDS, "a probe has at most 12 operands")                          \
  X(SDT_ETYPE, "unknown operand type or role")                                 \
  X(SDT_ENOMEM, "out of memory")                                               \
  X(SDT_EIMAGE, "the probe image could not be created")                        \
  X(SDT_ELOAD, "the probe image could not be loaded")                          \
  X(SDT_EUNSUPPORTED, "this machine has no probe images")

typedef enum sdt_status {
#define SDT_ENUM(code, message) code,
  SDT_ERRORS(SDT_ENUM)
#undef SDT_ENUM
} sdt_status;

/* Room for a message that names the call that failed and its errno. */
#define SDT_MESSAGE_SIZE 256
typedef struct sdt_error {
  sdt_status status;
  char message[SDT_MESSAGE_SIZE];
} sdt_error;

/* The default message of a code; never NULL. */
const char *sdt_strerror(int status);

/* --------------------------------------------------------------- operands */

/* Values as they stand in the `rbtrace` note (docs/probes.md): never renumber. */
typedef enum sdt_type {
  SDT_INTEGER = 1, /* int64; nil is INT64_MIN */
  SDT_STRING = 2,  /* pointer to NUL-terminated bytes; nil is NULL */
  SDT_SYMBOL = 3,  /* as SDT_STRING */
  SDT_FLOAT = 4,   /* raw IEEE 754 bits; nil is SDT_NIL_FLOAT */
  SDT_BOOL = 5,    /* 1, 0; nil is 2 */
  SDT_OPEN = 6,    /* not known yet, only nil so far: INT64_MIN; sdt_settle */
} sdt_type;

typedef enum sdt_operand_role {
  SDT_ARGUMENT = 0,
  SDT_DURATION = 1, /* int64 nanoseconds; -1: the span began untraced */
  SDT_OUTCOME = 2,  /* 0 returned, 1 raised, 2 thrown or broken out of */
  SDT_RESULT = 3,   /* a span's end has it, its begin has not */
  SDT_METHOD = 4,   /* no operand: the Ruby name of what is measured */
} sdt_operand_role;

typedef enum sdt_probe_role {
  SDT_EVENT = 0,
  SDT_SPAN_BEGIN = 1,
  SDT_SPAN_END = 2,
} sdt_probe_role;

#define SDT_NIL_INTEGER INT64_MIN
#define SDT_NIL_FLOAT UINT64_C(0x7ff8726274726163) /* a quiet NaN of our own */
#define SDT_NIL_BOOL 2

typedef struct sdt_operand {
  const char *name; /* NULL or "": unnamed, shown as arg0, arg1 ... */
  sdt_type type;
  sdt_operand_role role;
} sdt_operand;

/* ----------------------------------------------------------------- probes */

/*
 * The eight bytes of a site while nobody traces it: nop, ret and padding.
 * x86-64: 1-byte nop, ret, int3 x 6. aarch64: nop, ret.
 */
#if defined(__x86_64__)
#define SDT_SITE_IDLE UINT64_C(0xccccccccccccc390)
#elif defined(__aarch64__)
#define SDT_SITE_IDLE UINT64_C(0xd65f03c0d503201f)
#else
#define SDT_SITE_IDLE UINT64_C(0)
#endif

/* A pool owns images (each one memfd, one ELF file) and the probes in them. */
typedef struct sdt_pool sdt_pool;

/*
 * A probe. `watch` points at eight bytes that equal SDT_SITE_IDLE while the
 * probe is to be skipped: the site itself, or bytes that never change while
 * the probe is disabled, or bytes that never match (sdt_watch_always), which
 * lets a caller send every fire down its slow path.
 * Read the fields; only the library writes them. Lives as long as its pool.
 */
typedef struct sdt_probe {
  const volatile uint64_t *watch;
  const volatile uint64_t *site;
  uint8_t count; /* of operands */
  uint8_t role;  /* sdt_probe_role */
  uint8_t disabled;
  uint8_t always;
  unsigned char *note; /* its rbtrace note; private */
} sdt_probe;

/*
 * Make an empty pool. It opens nothing until the first probe is defined.
 * Returns NULL when there is no memory. Destroy unmaps every image and frees
 * every probe: no thread may be using one then.
 */
sdt_pool *sdt_pool_create(void);
void sdt_pool_destroy(sdt_pool *pool);

/*
 * Define a probe; any time, any thread, and in a library's constructor, too:
 * no lock of ours is held while an image is loaded. It is visible to every
 * reader of the process's ELF images when this returns. Names are copied.
 * Defining the same name twice makes two sites of one name, as in any USDT
 * program.
 *
 * provider, name: 1 to 63 of A-Z a-z 0-9 _
 * operands: `count` of them, 0 to SDT_MAX_OPERANDS
 * error: filled on failure; may be NULL
 * ret: the probe
 * Returns SDT_OK or another sdt_status; nothing is changed on failure.
 */
int sdt_define(sdt_pool *pool, const char *provider, const char *name,
               sdt_probe_role role, const sdt_operand *operands, size_t count,
               sdt_error *error, sdt_probe **ret);

/*
 * Define the probe of a method. As sdt_define; its rbtrace note also has the
 * method's name in Ruby, "Shop::Till#pay!".
 *
 * method: 1 to SDT_MAX_METHOD bytes, or SDT_ENAME
 */
#define SDT_MAX_METHOD 253
int sdt_define_method(sdt_pool *pool, const char *provider, const char *name,
                      sdt_probe_role role, const sdt_operand *operands,
                      size_t count, const char *method, sdt_error *error,
                      sdt_probe **ret);

/*
 * Give operand `index`, which was defined as SDT_OPEN, its type; any time, any
 * thread. The first type counts, in every process that shares the note (after a
 * fork), and readers of the note see it from then on.
 *
 * ret: the type that the operand has now, which is `type` only if it was open
 * Returns SDT_OK, SDT_EOPERANDS (no such operand) or SDT_ETYPE.
 */
int sdt_settle(sdt_probe *probe, size_t index, sdt_type type, sdt_type *ret);

/* A disabled probe reads as untraced here and stays visible to tracers. */
void sdt_probe_disable(sdt_probe *probe);
void sdt_probe_enable(sdt_probe *probe);

/* on != 0: sdt_watched() is true of the probe whatever its site holds. */
void sdt_watch_always(sdt_probe *probe, int on);

/* The check before a fire: a load and a compare through `watch`, no call. */
static inline int sdt_watched(const sdt_probe *probe) {
  const volatile uint64_t *watch =
      __atomic_load_n(&probe->watch, __ATOMIC_RELAXED);
  return __builtin_expect(*watch != SDT_SITE_IDLE, 0);
}

/* Is the site patched, and the probe not disabled? (Slow path of the above.) */
int sdt_traced(const sdt_probe *probe);

/* Call the site with probe->count operands. Does nothing harmful untraced. */
void sdt_fire(const sdt_probe *probe, const uint64_t *operands);

/* Figures of a pool, for tests and for the curious. */
typedef struct sdt_pool_stats {
  size_t images;
  size_t probes;
  size_t bytes; /* of notes and sites in use */
} sdt_pool_stats;
void sdt_pool_stat(sdt_pool *pool, sdt_pool_stats *ret);

/* ------------------------------------------------- the original interface */

/*
 * As in the original library, calls for one provider must not overlap, except
 * probeFire and probeIsEnabled; calls for different providers may.
 *
 * One thing differs: a new provider keeps its probes in a memfd, where the
 * original makes a file in /tmp unless it was built to use memfds. So a
 * program that expects providerLoad to fail for want of a file (the original's
 * own tests of errors do), or that reads _filename, first calls
 * providerUseMemfd(provider, memfd_disabled).
 */

#define MAX_ARGUMENTS 6

typedef enum {
  noError = -1,
  elfCreationError = 0,
  tmpCreationError = 1,
  sharedLibraryOpenError = 2,
  symbolLoadingError = 3,
  sharedLibraryCloseError = 4,
} SDTError_t;

typedef enum {
  noarg = 0,
  uint8 = 1,
  int8 = -1,
  uint16 = 2,
  int16 = -2,
  uint32 = 4,
  int32 = -4,
  uint64 = 8,
  int64 = -8,
} ArgType_t;

typedef enum {
  memfd_disabled = 0,
  memfd_enabled = 1,
} MemFDOption_t;

struct SDTProvider;

typedef struct SDTProbe {
  char *name;
  ArgType_t argFmt[MAX_ARGUMENTS];
  void *_fire;
  struct SDTProvider *provider;
  int argCount;
} SDTProbe_t;

typedef struct SDTProbeList_ {
  SDTProbe_t probe;
  struct SDTProbeList_ *next;
} SDTProbeList_t;

/* libc's errno is a macro, and a field of that name was here first. */
#pragma push_macro("errno")
#undef errno
typedef struct SDTProvider {
  char *name;
  SDTProbeList_t *probes;
  SDTError_t errno;
  char *error;

  /* private */
  void *_handle;
  char *_filename;
  int _fd;
  MemFDOption_t _memfd;
} SDTProvider_t;
#pragma pop_macro("errno")

SDTProvider_t *providerInit(const char *name);
int providerUseMemfd(SDTProvider_t *provider, const MemFDOption_t use_memfd);
SDTProbe_t *providerAddProbe(SDTProvider_t *provider, const char *name,
                             int argCount, ...);
int providerLoad(SDTProvider_t *provider);
int providerUnload(SDTProvider_t *provider);
void providerDestroy(SDTProvider_t *provider);
void probeFire(SDTProbe_t *probe, ...);
int probeIsEnabled(SDTProbe_t *probe);

#ifdef __cplusplus
}
#endif

#endif /* LIBSTAPSDT_H */

/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness.h"
#include "patch.h"
#include "reader.h"

#undef errno

#if defined(__LP64__)
_Static_assert(offsetof(SDTProbe_t, name) == 0, "");
_Static_assert(offsetof(SDTProbe_t, argFmt) == 8, "");
_Static_assert(offsetof(SDTProbe_t, _fire) == 32, "");
_Static_assert(offsetof(SDTProbe_t, provider) == 40, "");
_Static_assert(offsetof(SDTProbe_t, argCount) == 48, "");
_Static_assert(sizeof(SDTProbe_t) == 56, "");
_Static_assert(offsetof(SDTProbeList_t, next) == 56, "");
_Static_assert(offsetof(SDTProvider_t, name) == 0, "");
_Static_assert(offsetof(SDTProvider_t, probes) == 8, "");
_Static_assert(offsetof(SDTProvider_t, errno) == 16, "");
_Static_assert(offsetof(SDTProvider_t, error) == 24, "");
_Static_assert(offsetof(SDTProvider_t, _handle) == 32, "");
_Static_assert(offsetof(SDTProvider_t, _filename) == 40, "");
_Static_assert(offsetof(SDTProvider_t, _fd) == 48, "");
_Static_assert(offsetof(SDTProvider_t, _memfd) == 52, "");
_Static_assert(sizeof(SDTProvider_t) == 56, "");
#endif
_Static_assert(noError == -1 && elfCreationError == 0 && tmpCreationError == 1 &&
                   sharedLibraryOpenError == 2 && symbolLoadingError == 3 &&
                   sharedLibraryCloseError == 4,
               "");
_Static_assert(uint8 == 1 && int8 == -1 && uint64 == 8 && int64 == -8, "");

static void life(void) {
  SDTProvider_t *provider = providerInit("shop-original");
  CHECK(provider);
  CHECK_STR(provider->name, "shop-original");
  CHECK_EQ(provider->errno, noError);
  CHECK(!provider->error && !provider->probes && !provider->_handle);
  SDTProbe_t *first = providerAddProbe(provider, "first", 2, int8, uint32);
  CHECK(first && provider->probes && &provider->probes->probe == first);
  CHECK_EQ(first->argCount, 2);
  CHECK_EQ(first->argFmt[1], uint32);
  CHECK_EQ(first->argFmt[2], noarg);
  CHECK(first->provider == provider && !first->_fire);
  CHECK_EQ(reader_count(getpid(), "shop-original", "first"), 0);
  probeFire(first, 1, 2);
  CHECK_EQ(probeIsEnabled(first), 0);

  CHECK_EQ(providerLoad(provider), 0);
  CHECK(first->_fire && provider->_handle && provider->_filename);
  CHECK_EQ(reader_count(getpid(), "shop-original", "first"), 1);
  probeFire(first, 1, 2);
  CHECK_EQ(probeIsEnabled(first), 0);
  SDTProbe_t *later = providerAddProbe(provider, "later", 0);
  CHECK(later && later->_fire);
  CHECK_EQ(reader_count(getpid(), "shop-original", "later"), 1);
  CHECK_EQ(providerLoad(provider), 0);
  CHECK_EQ(reader_count(getpid(), "shop-original", "later"), 1);

  CHECK_EQ(providerUnload(provider), 0);
  CHECK(!first->_fire && !later->_fire && !provider->_handle);
  CHECK_EQ(reader_count(getpid(), "shop-original", "first"), 0);
  probeFire(first, 1, 2);
  CHECK_EQ(providerUnload(provider), 0);
  CHECK_EQ(providerLoad(provider), 0);
  CHECK_EQ(reader_count(getpid(), "shop-original", "first"), 1);
  CHECK_EQ(reader_count(getpid(), "shop-original", "later"), 1);
  providerDestroy(provider);
  CHECK_EQ(reader_count(getpid(), "shop-original", "first"), 0);
}

static void sized(void) {
  SDTProvider_t *provider = providerInit("shop");
  CHECK(providerAddProbe(provider, "sold", 6, int8, uint8, int16, uint16, int32,
                         uint64));
  CHECK_EQ(providerLoad(provider), 0);
  char paths[MAX_IMAGES][64];
  CHECK_EQ(reader_images(getpid(), paths), 1);
  struct reader reader;
  CHECK_EQ(reader_init_path(&reader, paths[0]), 0);
  const struct read_probe *probe = reader_find(&reader, "shop", "sold");
  CHECK(probe && !probe->described);
  CHECK_EQ(reader.rbtrace_notes, 0);
#if defined(__x86_64__)
  CHECK_STR(probe->arguments, "-1@%dil 1@%sil -2@%dx 2@%cx -4@%r8d 8@%r9");
#endif
  reader_deinit(&reader);
  providerDestroy(provider);
}

static void fired(void) {
  SDTProvider_t *provider = providerInit("shop");
  SDTProbe_t *probe =
      providerAddProbe(provider, "sold", 6, int64, uint8, int64, int32, uint64,
                       int64);
  CHECK(probe && providerLoad(provider) == 0);
  const sdt_probe site = {.site = probe->_fire};
  CHECK_EQ(patch_record(&site), 0);
  CHECK_EQ(probeIsEnabled(probe), 1);
  patch_calls = 0;
  probeFire(probe, INT64_C(-1), 200, INT64_MIN, -5, UINT64_MAX, INT64_C(6));
  CHECK_EQ(patch_calls, 1);
  CHECK_EQ(patch_recorded[0], -1);
  CHECK_EQ((uint8_t)patch_recorded[1], 200);
  CHECK_EQ(patch_recorded[2], INT64_MIN);
  CHECK_EQ((int32_t)patch_recorded[3], -5);
  CHECK_EQ(patch_recorded[4], UINT64_MAX);
  CHECK_EQ(patch_recorded[5], 6);
  CHECK_EQ(patch_restore(&site), 0);
  CHECK_EQ(probeIsEnabled(probe), 0);
  providerDestroy(provider);
}

static void errors(void) {
  char name[300];
  memset(name, 'n', sizeof(name) - 1);
  name[sizeof(name) - 1] = 0;
  CHECK(!providerInit(NULL) && !providerInit("") && !providerInit(name));
  SDTProvider_t *provider = providerInit("shop");
  CHECK(!providerAddProbe(provider, "sold", -1));
  CHECK_EQ(provider->errno, elfCreationError);
  CHECK_STR(provider->error,
            "probe 'sold' of provider 'shop': -1 arguments, not 0 to 6");
  CHECK(!providerAddProbe(provider, "sold", 7, int8, int8, int8, int8, int8,
                          int8, int8));
  CHECK(!providerAddProbe(provider, "sold", 2147483647));
  CHECK(!providerAddProbe(provider, "sold", 1, 3));
  CHECK_STR(provider->error,
            "probe 'sold' of provider 'shop': unknown argument type");
  CHECK(!providerAddProbe(provider, "sold", 1, noarg));
  CHECK(!providerAddProbe(provider, NULL, 0));
  CHECK(!providerAddProbe(provider, "", 0));
  CHECK(!providerAddProbe(provider, name, 0));
  CHECK_EQ(providerUseMemfd(provider, (MemFDOption_t)2), -1);
  CHECK(!provider->probes);
  name[255] = 0;
  CHECK(providerAddProbe(provider, name, 0));
  CHECK_EQ(providerLoad(provider), 0);
  CHECK_EQ(reader_count(getpid(), "shop", name), 1);
  providerDestroy(provider);
  providerDestroy(NULL);
}

/* The two errors that the original library's tests provoke. */
static void temporary_file_error(void) {
  SDTProvider_t *provider = providerInit("test/probe/creation/error");
  CHECK_EQ(providerUseMemfd(provider, memfd_disabled), 0);
  CHECK_EQ(providerLoad(provider), -1);
  CHECK_EQ(provider->errno, tmpCreationError);
  CHECK(strstr(provider->error, "/tmp/test/probe/creation/error-"));
  providerDestroy(provider);
}

static void close_error(void) {
  if (!HARNESS_UNLOADS) {
    harness_skip("this C library unloads nothing");
    return;
  }
  SDTProvider_t *provider = providerInit("test-error");
  CHECK_EQ(providerLoad(provider), 0);
  CHECK_EQ(dlclose(provider->_handle), 0);
  CHECK_EQ(providerUnload(provider), -1);
  CHECK_EQ(provider->errno, sharedLibraryCloseError);
  CHECK_STR(provider->error,
            "provider 'test-error': its image had been closed already");
  CHECK_EQ(providerLoad(provider), 0);
  providerDestroy(provider);
}

static void temporary_file(void) {
  SDTProvider_t *provider = providerInit("shop");
  SDTProbe_t *probe = providerAddProbe(provider, "sold", 1, int64);
  CHECK_EQ(providerUseMemfd(provider, memfd_disabled), 0);
  CHECK_EQ(providerLoad(provider), 0);
  CHECK(strncmp(provider->_filename, "/tmp/shop-", 10) == 0);
  struct reader reader;
  CHECK_EQ(reader_init_path(&reader, provider->_filename), 0);
  CHECK(reader_find(&reader, "shop", "sold"));
  reader_deinit(&reader);
  probeFire(probe, INT64_C(1));
  char *name = strdup(provider->_filename);
  CHECK_EQ(providerUnload(provider), 0);
  CHECK(access(name, F_OK) != 0);
  free(name);
  providerDestroy(provider);
}

/* With long names and many probes, a provider needs several images. */
static void several_images(void) {
  SDTProvider_t *provider = providerInit("shop");
  CHECK_EQ(providerLoad(provider), 0);
  for (int i = 0; i < 1500; i++) {
    SDTProbe_t *probe = providerAddProbe(provider, "sold", 0);
    CHECK(probe && probe->_fire);
    probeFire(probe);
  }
  CHECK_EQ(reader_count(getpid(), "shop", "sold"), 1500);
  providerDestroy(provider);
}

/* A client in another language, through a foreign function interface. */
static void foreign_client(void) {
  const char *library = getenv("SDT_TEST_LIBRARY");
  const char *python = "/usr/bin/python3";
  if (!library || access(python, X_OK) != 0) {
    harness_skip("needs SDT_TEST_LIBRARY and /usr/bin/python3");
    return;
  }
  char command[1024];
  snprintf(command, sizeof(command), "%s tests/client.py '%s'", python,
           library);
  CHECK_EQ(system(command), 0);
}

const struct test compat_tests[] = {
    {"from init to destroy", life},
    {"arguments of every size", sized},
    {"a provider's probe fires", fired},
    {"errors", errors},
    {"a temporary file that cannot be made", temporary_file_error},
    {"an image that was closed behind our back", close_error},
    {"a temporary file instead of a memfd", temporary_file},
    {"more probes than an image holds", several_images},
    {"a client through a foreign-function interface", foreign_client},
    {NULL, NULL},
};

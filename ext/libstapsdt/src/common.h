/*
 * Needed by every file of the library: export marks and errors.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef SDT_COMMON_H
#define SDT_COMMON_H

#include "libstapsdt.h"

/* A program that compiles these files into itself may define this empty. */
#ifndef SDT_EXPORT
#define SDT_EXPORT __attribute__((visibility("default")))
#endif

/*
 * Fill `error` (which may be NULL) with the code, its default message, and
 * the printf-style detail behind it; `%m` in the format is errno's text.
 * Returns the code.
 */
int sdt_fail(sdt_error *error, sdt_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif /* SDT_COMMON_H */

/*
 * Export macro and errors, for every file of the library.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef SDT_COMMON_H
#define SDT_COMMON_H

#include "libstapsdt.h"

/* Programs that compile these files in may define this as empty. */
#ifndef SDT_EXPORT
#define SDT_EXPORT __attribute__((visibility("default")))
#endif

/*
 * Fill `error` (which may be NULL) with the status, its default message, and
 * a printf-style detail. `%m` in the format stands for errno's message.
 * Returns the status.
 */
int sdt_fail(sdt_error *error, sdt_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif /* SDT_COMMON_H */

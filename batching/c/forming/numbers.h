/* Real numbers as in the definition. For the files beside this one. */
#ifndef SHUNTER_FORMING_NUMBERS_H
#define SHUNTER_FORMING_NUMBERS_H

#include <float.h>
#include <stdint.h>

#ifdef __FAST_MATH__
#error "the order of operations is part of the rules: not with -ffast-math"
#endif
_Static_assert(FLT_EVAL_METHOD == 0, "a double is a double");
_Static_assert(DBL_MANT_DIG == 53 && DBL_MAX_EXP == 1024, "and that of IEEE 754");

static inline double shunter_smaller(double a, double b) { return b < a ? b : a; }

static inline double shunter_larger(double a, double b) { return b > a ? b : a; }

/* Towards zero; what is too large for it becomes the largest, as in Java. */
static inline int64_t shunter_whole(double number) {
    if (number >= 0x1p63) {
        return INT64_MAX;
    }
    return number > -0x1p63 ? (int64_t)number : INT64_MIN;
}

#endif

/* What this library was built from; build.py looks for it in its bytes. */
#ifndef SHUNTER_TRITON_SOURCE
#define SHUNTER_TRITON_SOURCE "" /* not by build.py */
#endif

extern const char shunter_triton_source[];

const char shunter_triton_source[] = SHUNTER_TRITON_SOURCE;

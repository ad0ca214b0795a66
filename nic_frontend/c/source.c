/* What the library was built from, for nic_frontend/build.py. */
extern const char shunter_source[];
const char shunter_source[] = SHUNTER_SOURCE;

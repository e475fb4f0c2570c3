/* A fake libcuda.so.1: one process-wide device of any description that records what is launched and computes nothing,
 * unless a test sets `on_launch`. Results are those of cuda.h. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum {
  OK = 0, INVALID_VALUE = 1, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101, INVALID_CONTEXT = 201,
  NO_BINARY = 209, INVALID_PTX = 218, UNSUPPORTED_PTX = 222, INVALID_HANDLE = 400, NOT_FOUND = 500,
  ILLEGAL_ADDRESS = 700, UNSUPPORTED_IN_CAPTURE = 900, INVALIDATED_CAPTURE = 901
};
enum { MOST_LAUNCHES = 4096, MOST_PARAMETERS = 24, PARAMETER_BYTES = 128 };

typedef struct {
  int devices, major, minor, sms, shared_per_block, driver_version, ptx_major, ptx_minor;
} description;

typedef struct {
  char name[256];
  unsigned grid[3], block[3], shared;
  void *stream, *context;
  void *parameters[MOST_PARAMETERS]; /* valid while the launch runs */
} launch;

typedef struct {
  unsigned char *image;
  size_t size;
  int is_ptx;
} module;

typedef struct {
  char name[256];
  int allowed; /* bytes of dynamic shared memory */
} function;

typedef struct {
  uint64_t extents[2], stride;
  uint32_t box[2];
  void *address;
  int type, swizzle;
} map;

static description the_device = {1, 8, 0, 108, 166912, 13000, 9, 0};
static launch launches[MOST_LAUNCHES];
static int launch_count, initialized, live_modules, live_contexts, context_pushes, forced_status, uncapturable;
static char forced[64], context_bytes[16];
static int lasting; /* an error after which the context is of no use */
static __thread void *contexts[16];
static __thread int depth;
static void (*on_launch)(const launch *);

void stub_describe(const description *wanted) { the_device = *wanted; }
void stub_on_launch(void (*callback)(const launch *)) { on_launch = callback; }
/* The next call of `name` answers `status`. */
void stub_fail(const char *name, int status) {
  strncpy(forced, name, sizeof forced - 1);
  forced_status = status;
}
void stub_reset(void) {
  the_device = (description){1, 8, 0, 108, 166912, 13000, 9, 0};
  launch_count = context_pushes = forced_status = uncapturable = lasting = 0;
  on_launch = NULL;
}
int stub_launch_count(void) { return launch_count; }
const launch *stub_launch(int index) { return &launches[index % MOST_LAUNCHES]; }
int stub_live_modules(void) { return live_modules; }
int stub_live_contexts(void) { return live_contexts; }
int stub_context_pushes(void) { return context_pushes; }
/* Calls so far that allocate, free or wait, which a call of a library must not: a graph could not capture it. */
int stub_uncapturable(void) { return uncapturable; }
void *stub_context(void) { return context_bytes; }
const map *stub_map(const void *bytes) { return bytes; }

static int fails(const char *name) {
  if (!forced_status || strcmp(name, forced)) return 0;
  int status = forced_status;
  forced_status = 0;
  if (status == ILLEGAL_ADDRESS) lasting = status;
  return status;
}
#define ENTER                                      \
  {                                                \
    int status = fails(__func__);                  \
    if (status) return status;                     \
    if (!initialized) return NOT_INITIALIZED;      \
  }

int cuInit(unsigned flags) {
  int status = fails(__func__);
  if (status) return status;
  if (!the_device.devices) return NO_DEVICE;
  initialized = 1;
  return flags ? INVALID_VALUE : OK;
}
int cuDriverGetVersion(int *version) { return *version = the_device.driver_version, OK; }
int cuDeviceGetCount(int *count) { ENTER return *count = the_device.devices, OK; }
int cuDeviceGet(int *device, int ordinal) {
  ENTER
  *device = ordinal;
  return ordinal < the_device.devices ? OK : INVALID_DEVICE;
}
int cuDeviceGetName(char *name, int size, int device) {
  ENTER
  strncpy(name, "Stub GPU", (size_t)size);
  return device < the_device.devices ? OK : INVALID_DEVICE;
}
int cuDeviceTotalMem_v2(size_t *bytes, int device) {
  ENTER
  *bytes = (size_t)40 << 30;
  return device < the_device.devices ? OK : INVALID_DEVICE;
}
int cuDeviceGetAttribute(int *value, int which, int device) {
  ENTER
  if (device >= the_device.devices) return INVALID_DEVICE;
  switch (which) {
    case 75: *value = the_device.major; break;
    case 76: *value = the_device.minor; break;
    case 16: *value = the_device.sms; break;
    case 97: *value = the_device.shared_per_block; break;
    default: return INVALID_VALUE;
  }
  return OK;
}
int cuDevicePrimaryCtxRetain(void **context, int device) {
  ENTER
  live_contexts++;
  *context = context_bytes;
  return device < the_device.devices ? OK : INVALID_DEVICE;
}
int cuDevicePrimaryCtxRelease_v2(int device) {
  (void)device;
  live_contexts--;
  return OK;
}
int cuCtxGetCurrent(void **context) {
  ENTER
  *context = depth ? contexts[depth - 1] : NULL;
  return OK;
}
int cuCtxPushCurrent_v2(void *context) {
  ENTER
  context_pushes++;
  contexts[depth++] = context;
  return OK;
}
int cuCtxPopCurrent_v2(void **context) {
  ENTER
  *context = contexts[--depth];
  return OK;
}

static size_t elf_size(const unsigned char *image) {
  uint64_t sections;
  uint16_t size, count;
  memcpy(&sections, image + 40, 8);
  memcpy(&size, image + 58, 2);
  memcpy(&count, image + 60, 2);
  return sections + (size_t)size * count;
}
/* As the driver: machine code of the device's major version and at most its minor one; PTX that the driver knows. */
int cuModuleLoadDataEx(void **out, const void *image, unsigned count, int *options, void **values) {
  ENTER
  (void)count, (void)options, (void)values;
  module *loaded = calloc(1, sizeof *loaded);
  const unsigned char *bytes = image;
  if (!memcmp(bytes, "\177ELF", 4)) {
    uint32_t flags;
    memcpy(&flags, bytes + 48, 4);
    int arch = bytes[8] == 8 ? flags >> 8 & 0xff : flags & 0xff;
    if (arch / 10 != the_device.major || arch % 10 > the_device.minor) return free(loaded), NO_BINARY;
    loaded->size = elf_size(bytes);
  } else {
    const char *version = strstr(image, ".version ");
    if (!version) return free(loaded), INVALID_PTX;
    char *end;
    long major = strtol(version + 9, &end, 10), minor = strtol(end + 1, NULL, 10);
    if (major > the_device.ptx_major || (major == the_device.ptx_major && minor > the_device.ptx_minor))
      return free(loaded), UNSUPPORTED_PTX;
    loaded->is_ptx = 1;
    loaded->size = strlen(image);
  }
  if (!depth) return free(loaded), INVALID_CONTEXT;
  loaded->image = malloc(loaded->size);
  memcpy(loaded->image, image, loaded->size);
  live_modules++;
  *out = loaded;
  return OK;
}
int cuModuleUnload(void *handle) {
  ENTER
  module *loaded = handle;
  live_modules--;
  free(loaded->image);
  free(loaded);
  return OK;
}
int cuModuleGetFunction(void **out, void *handle, const char *name) {
  ENTER
  module *loaded = handle;
  char needle[300] = {0};
  size_t length = strlen(name) + 1;
  needle[0] = loaded->is_ptx ? ' ' : 0;
  memcpy(needle + 1, name, length - 1);
  needle[length] = loaded->is_ptx ? '(' : 0;
  if (!memmem(loaded->image, loaded->size, needle, length + 1)) return NOT_FOUND;
  function *made = calloc(1, sizeof *made);
  strncpy(made->name, name, sizeof made->name - 1);
  made->allowed = 48 * 1024;
  *out = made;
  return OK;
}
int cuFuncSetAttribute(void *handle, int attribute, int value) {
  ENTER
  if (attribute != 8 || value > the_device.shared_per_block) return INVALID_VALUE;
  ((function *)handle)->allowed = value;
  return OK;
}
/* A stream that is captured keeps its launches, and copies of those parameters that lie on the stack, as the door's do:
 * a launch does not say how many it has. Replaying them runs them in this order. */
typedef struct {
  launch what;
  unsigned char parameters[MOST_PARAMETERS][PARAMETER_BYTES];
} node;
typedef struct {
  node *nodes;
  int count;
} graph;
static graph *capturing;
static void *captured_stream;
static int live_handles, invalidated;
static char *stack_end;
/* Streams, events and graphs that nobody has given back. */
int stub_live_handles(void) { return live_handles; }

static void run(launch made) {
  launch *kept = &launches[launch_count++ % MOST_LAUNCHES];
  *kept = made;
  if (on_launch) on_launch(kept);
}
static void capture(const launch *made) {
  char here;
  capturing->nodes = realloc(capturing->nodes, (size_t)(capturing->count + 1) * sizeof(node));
  node *kept = &capturing->nodes[capturing->count++];
  kept->what = *made;
  for (int i = 0; i < MOST_PARAMETERS; i++) {
    char *from = made->parameters[i];
    if (from > &here && from <= stack_end - PARAMETER_BYTES) memcpy(kept->parameters[i], from, PARAMETER_BYTES);
  }
}

int cuStreamCreate(void **stream, unsigned flags) {
  ENTER
  live_handles++;
  return *stream = calloc(1, 1), flags > 1 ? INVALID_VALUE : OK;
}
int cuStreamDestroy_v2(void *stream) { return free(stream), live_handles--, OK; }
int cuStreamBeginCapture_v2(void *stream, int mode) {
  ENTER
  pthread_attr_t about;
  void *low;
  size_t bytes;
  if (!stream || capturing || mode < 0 || mode > 2) return INVALID_VALUE;
  pthread_getattr_np(pthread_self(), &about);
  pthread_attr_getstack(&about, &low, &bytes);
  pthread_attr_destroy(&about);
  stack_end = (char *)low + bytes;
  capturing = calloc(1, sizeof *capturing);
  captured_stream = stream;
  invalidated = 0;
  return OK;
}
int cuGraphDestroy(void *handle) {
  graph *of = handle;
  if (!of) return INVALID_VALUE;
  free(of->nodes);
  free(of);
  live_handles--;
  return OK;
}
int cuStreamEndCapture(void *stream, void **made) {
  graph *done = capturing;
  if (!done || stream != captured_stream) return INVALID_VALUE;
  capturing = NULL;
  live_handles++;
  *made = NULL;
  if (invalidated) return cuGraphDestroy(done), INVALIDATED_CAPTURE;
  return *made = done, OK;
}
int cuGraphInstantiateWithFlags(void **out, void *handle, unsigned long long flags) {
  ENTER
  const graph *of = handle;
  if (!of || flags) return INVALID_VALUE;
  graph *made = calloc(1, sizeof *made);
  made->count = of->count;
  made->nodes = malloc((size_t)of->count * sizeof(node));
  memcpy(made->nodes, of->nodes, (size_t)of->count * sizeof(node));
  live_handles++;
  return *out = made, OK;
}
int cuGraphExecDestroy(void *handle) { return cuGraphDestroy(handle); }
int cuGraphLaunch(void *handle, void *stream) {
  ENTER
  graph *of = handle;
  if (!of || capturing) return of ? UNSUPPORTED_IN_CAPTURE : INVALID_VALUE;
  for (int i = 0; i < of->count; i++) {
    launch made = of->nodes[i].what;
    made.stream = stream;
    for (int k = 0; k < MOST_PARAMETERS; k++) made.parameters[k] = of->nodes[i].parameters[k];
    run(made);
  }
  return OK;
}

int cuLaunchKernel(void *handle, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **parameters, void **extra) {
  ENTER
  function *f = handle;
  if (!depth || contexts[depth - 1] != context_bytes) return INVALID_CONTEXT;
  if (!f || extra) return INVALID_HANDLE;
  if (!gx || !gy || !gz || gx > 2147483647u || gy > 65535 || gz > 65535 || bx * by * bz > 1024 || bz > 64 || !bx || !by || !bz)
    return INVALID_VALUE;
  if ((int)shared > f->allowed) return INVALID_VALUE;
  launch made = {{0}, {gx, gy, gz}, {bx, by, bz}, shared, stream, contexts[depth - 1], {0}};
  memcpy(made.name, f->name, sizeof made.name);
  memcpy(made.parameters, parameters, sizeof made.parameters);
  if (capturing && stream == captured_stream) capture(&made);
  else run(made);
  return OK;
}
int cuMemsetD2D8Async(uint64_t target, size_t pitch, unsigned char value, size_t width, size_t height, void *stream) {
  ENTER
  (void)stream;
  if (!depth || width > pitch) return INVALID_VALUE;
  for (size_t row = 0; row < height; row++) memset((char *)(uintptr_t)target + row * pitch, value, width);
  return OK;
}
int cuTensorMapEncodeTiled(void *bytes, int type, unsigned rank, void *address, const uint64_t *extents,
                           const uint64_t *strides, const uint32_t *box, const uint32_t *steps, int interleave,
                           int swizzle, int promotion, int fill) {
  ENTER
  (void)interleave, (void)promotion, (void)fill;
  if (rank != 2 || (uintptr_t)address % 16 || strides[0] % 16 || steps[0] != 1 || steps[1] != 1) return INVALID_VALUE;
  if (!extents[0] || !extents[1] || !box[0] || box[0] > 256 || !box[1] || box[1] > 256) return INVALID_VALUE;
  if ((uintptr_t)bytes % 64) return INVALID_VALUE;
  *(map *)bytes = (map){{extents[0], extents[1]}, strides[0], {box[0], box[1]}, address, type, swizzle};
  return OK;
}
/* Memory is the host's; time is what a test advances it by. */
static double now_ms;
static int live_buffers;
void stub_advance(double ms) { now_ms += ms; }
int stub_live_buffers(void) { return live_buffers; }
int cuMemAlloc_v2(uint64_t *address, size_t bytes) {
  ENTER
  uncapturable++;
  void *memory = aligned_alloc(256, (bytes + 255) / 256 * 256);
  live_buffers++;
  return *address = (uint64_t)(uintptr_t)memory, memory ? OK : 2;
}
int cuMemFree_v2(uint64_t address) { return free((void *)(uintptr_t)address), live_buffers--, uncapturable++, OK; }
int cuMemAllocAsync(uint64_t *address, size_t bytes, void *stream) { return (void)stream, cuMemAlloc_v2(address, bytes); }
int cuMemFreeAsync(uint64_t address, void *stream) { return (void)stream, cuMemFree_v2(address); }
int cuMemAllocPitch_v2(uint64_t *address, size_t *pitch, size_t width, size_t height, unsigned item) {
  return (void)item, *pitch = (width + 511) / 512 * 512, cuMemAlloc_v2(address, *pitch * height);
}
int cuMemAllocHost_v2(void **memory, size_t bytes) { return cuMemAlloc_v2((uint64_t *)memory, bytes); }
int cuMemFreeHost(void *memory) { return cuMemFree_v2((uint64_t)(uintptr_t)memory); }
/* A wait that a capture does not survive. */
static int waited(void) {
  uncapturable++;
  if (capturing) invalidated = 1;
  return capturing ? UNSUPPORTED_IN_CAPTURE : lasting;
}
int cuCtxSynchronize(void) { return waited(); }
int cuStreamSynchronize(void *stream) { return (void)stream, waited(); }
int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t bytes) {
  ENTER
  return memcpy((void *)(uintptr_t)to, from, bytes), OK;
}
int cuEventCreate(void **event, unsigned flags) { return (void)flags, live_handles++, *event = calloc(1, sizeof(double)), OK; }
int cuEventDestroy_v2(void *event) { return free(event), live_handles--, OK; }
int cuEventRecord(void *event, void *stream) { return (void)stream, *(double *)event = now_ms, OK; }
int cuEventSynchronize(void *event) { return (void)event, waited(); }
int cuEventElapsedTime(float *ms, void *begin, void *end) { return *ms = (float)(*(double *)end - *(double *)begin), OK; }

int cuGetErrorName(int status, const char **name) { return *name = status == NO_BINARY ? "CUDA_ERROR_NO_BINARY_FOR_GPU" : "CUDA_ERROR_STUB", OK; }
int cuGetErrorString(int status, const char **text) { return (void)status, *text = "as the stub was told", OK; }

/* A DLPack exchange API that forwards to another one and says that its tensors are on CUDA device 0. */
#include <dlpack/dlpack.h>
static const DLPackExchangeAPI *inner;
static void *the_stream;
static int forward(void *object, DLTensor *out) {
  int status = inner->dltensor_from_py_object_no_sync(object, out);
  out->device = (DLDevice){kDLCUDA, 0};
  return status;
}
static int stream_now(DLDeviceType type, int32_t id, void **stream) {
  (void)type, (void)id;
  *stream = the_stream;
  return 0;
}
const DLPackExchangeAPI *stub_exchange(const DLPackExchangeAPI *from) {
  static DLPackExchangeAPI made;
  made = *from;
  inner = from;
  made.dltensor_from_py_object_no_sync = forward;
  made.current_work_stream = stream_now;
  return &made;
}
void stub_set_stream(void *stream) { the_stream = stream; }

/* One that says of every tensor that it cannot be described. */
static int refuse(void *object, DLTensor *out) {
  (void)object, (void)out;
  void **kind = dlsym(RTLD_DEFAULT, "PyExc_BufferError");
  ((void (*)(void *, const char *))dlsym(RTLD_DEFAULT, "PyErr_SetString"))(*kind, "sparse");
  return -1;
}
const DLPackExchangeAPI *stub_refusing_exchange(void) {
  static DLPackExchangeAPI made;
  made.header.version = (DLPackVersion){1, 3};
  made.dltensor_from_py_object_no_sync = refuse;
  made.current_work_stream = stream_now;
  return &made;
}

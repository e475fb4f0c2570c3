/* What the parts of the door of a GPU library of products share: the opened library, one checked call. */
#ifndef VORTEX_GPU_CALL_H
#define VORTEX_GPU_CALL_H

#include "gpu_door.h"
#include "gpu_opened.h"
#include "integers.h"

enum { OPERAND_A = 0, OPERAND_B = 1, OPERAND_OUT = 2, FIRST_EXTRA = 3, MOST_OPERANDS = FIRST_EXTRA + VX_MOST_EXTRAS };
enum { TRANSPOSE_A = 1, TRANSPOSE_B = 2 };
#define LIMIT_32 INT64_C(2147483647)
/* Of an extent: kernels count in 32 bits, and a few tiles past the end. */
#define LONGEST (LIMIT_32 - (1 << 16))

typedef struct {
  vx_gpu_opened on;
  vx_gpu_setup setup;
  int64_t item_bytes, out_bytes; /* of an element of A and B, and of C */
  int32_t may_cut; /* whether a call may be two regions */
} library;

/* A matrix in memory: `rows` lines of `columns` contiguous elements, `stride` elements apart; and up to two axes of such matrices. */
typedef struct {
  char *data;
  int64_t rows, columns, stride;
  int is_transposed; /* the tensor was column-major, so lines are its columns */
  int64_t extents[2], steps[2]; /* outer first; elements, 0 along what has but one */
} matrix;

typedef struct {
  matrix a, b, c;
  vx_gpu_shape shape;
  vx_gpu_finished finished;
  const int64_t *rows; /* of each of `groups` */
  int64_t groups;
  vx_gpu_window window;
} call;

/* gpu_operands.c: tensors checked and told as matrices; 0, or a refusal. */
int vx_gpu_is_empty(const matrix *x);
int64_t vx_gpu_take_extra(const library *of, int32_t which, char *data, int64_t end, int64_t row, int64_t column, call *c);
int32_t vx_gpu_alignment(const matrix *x, int64_t item);
int32_t vx_gpu_alignment_of_stores(const library *of, const matrix *c);
int64_t vx_gpu_refuse_overlaps(const library *of, const matrix *a, const matrix *b, const matrix *c);
int64_t vx_gpu_open_call(const library *of, const DLTensor *tensors, int64_t flags, call *out);
int64_t vx_gpu_open_groups(const library *of, const DLTensor *tensors, const int64_t *rows, int64_t count, int64_t flags, call *c);

/* gpu_conv.c: the same for the tensors of a convolution. */
int64_t vx_gpu_open_conv(const library *of, const DLTensor *tensors, const vx_gpu_filter *filter, call *c);

/* gpu_launch.c: the kernels of a call onto the stream; 0, or a refusal. */
int64_t vx_gpu_run(library *of, const call *whole, const vx_gpu_regions *regions, void *stream);

#endif

/* Leading axes as rows: what the door of products and the layers of PyTorch's graphs read of an A of several axes. */
#ifndef VORTEX_FOLD_H
#define VORTEX_FOLD_H

#include "values.h"

#define MOST_RANK 8 /* of an A whose axes before the last are all rows */

/* [..., k] as the matrix of its rows, in `room` for its extents and strides; not where those are no constant distance apart. */
static inline int fold(const DLTensor *t, DLTensor *flat, int64_t *room) {
  int64_t rows = 1, apart = 0, next = 0, last = t->ndim - 1;
  if (last < 1 || t->ndim > MOST_RANK) return 0;
  for (int64_t axis = 0; axis < last; axis++) rows *= t->shape[axis];
  for (int64_t axis = last - 1, dense = t->shape[last]; axis >= 0 && rows; dense *= t->shape[axis--]) {
    int64_t stride = t->strides ? t->strides[axis] : dense;
    if (t->shape[axis] == 1) continue;
    if (apart && stride != next) return 0;
    if (!apart) apart = stride;
    next = stride * t->shape[axis];
  }
  const int64_t shape[] = {rows, t->shape[last], apart ? apart : t->shape[last], t->strides ? t->strides[last] : 1};
  for (int i = 0; i < 4; i++) room[i] = shape[i];
  *flat = *t;
  flat->ndim = 2;
  flat->shape = room;
  flat->strides = room + 2;
  return 1;
}

#endif

/* What a call is opened by, whether its plan is chosen or given. */
#ifndef VORTEX_OPENED_H
#define VORTEX_OPENED_H

#include "products.h"

/* Fill a call from its operands and the `extras` behind them, `count` of them; a packed operand has the logical extents n and k.
 * 0, or the refusal. */
int vx_open_call(const TVMFFIAny *args, const TVMFFIAny *extras, int64_t count, int64_t flags, int packed, int64_t n, int64_t k, vx_call *call);

#endif

/* Everything that is written once and compiled for float and for double. */
#include "product.h"
#include "activation.h"
#include "elman.h"
#include "lstm.h"
#include "gru.h"
#include "linear.h"

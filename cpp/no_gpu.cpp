#include <stdexcept>

#include "gpu/metallib.h"
#include "ops/activation.h"
#include "ops/attention.h"
#include "ops/cross_entropy.h"
#include "ops/hosted.h"
#include "ops/layer_norm.h"
#include "ops/linear.h"
#include "ops/logsumexp.h"
#include "ops/lora.h"
#include "ops/masked_softmax.h"
#include "ops/quantize.h"
#include "ops/quantized_matmul.h"
#include "ops/reduce.h"
#include "ops/residual_norm.h"
#include "ops/rms_norm.h"
#include "ops/rope.h"
#include "ops/rope_append.h"
#include "ops/softmax.h"

// Compiled in place of gpu/ where the library is built without Metal.
namespace mlx_primitives {

#define NO_GPU(TYPE, OP)                                                          \
  void TYPE::eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) {   \
    throw std::runtime_error("[" OP "] mlx-primitives was built without Metal."); \
  }

NO_GPU(Activation, "activation")
NO_GPU(Affine, "affine")
NO_GPU(Attention, "attention")
NO_GPU(CrossEntropy, "cross_entropy")
NO_GPU(CrossEntropyGrad, "cross_entropy")
NO_GPU(Hosted, "hosted")
NO_GPU(LayerNorm, "layer_norm")
NO_GPU(Linear, "linear")
NO_GPU(LogSumExp, "logsumexp")
NO_GPU(LogSoftmax, "log_softmax")
NO_GPU(LoraLinear, "lora_linear")
NO_GPU(MaskedSoftmax, "masked_softmax")
NO_GPU(MaskedSoftmaxGrad, "masked_softmax")
NO_GPU(Quantize, "quantize")
NO_GPU(Dequantize, "dequantize")
NO_GPU(QuantizedMatmul, "quantized_matmul")
NO_GPU(Reduction, "reduce")
NO_GPU(ResidualNorm, "residual_norm")
NO_GPU(RmsNorm, "rms_norm")
NO_GPU(Rope, "rope")
NO_GPU(RopeAppend, "rope_append")
NO_GPU(Softmax, "softmax")

std::string metallib_description() {
  return "none: built without Metal";
}

} // namespace mlx_primitives

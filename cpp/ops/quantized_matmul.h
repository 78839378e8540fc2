#pragma once

#include <optional>

#include "runtime/primitive.h"
#include "runtime/row_order.h"

namespace mlx_primitives {

/**
 * The format of codes, with MLX's names. MLX has no K-quants, which are formats of ggml: affine
 * codes with 20 bytes of scales for each 256 weights.
 * crates/kernels/src/quantized_matmul/k_quant.rs describes them.
 */
enum class QuantizedMode : uint8_t { Affine, Mxfp4, Mxfp8, Nvfp4, KQuant };

/** How weights are packed. */
struct QuantizedFormat {
  int group_size;
  int bits;
  QuantizedMode mode;

  bool operator==(const QuantizedFormat&) const = default;

  /** Whether groups have biases, and scales of the same type as the model. */
  bool affine() const {
    return mode == QuantizedMode::Affine;
  }
  const char* name() const;
  /** The name of the format in the names of kernels. */
  std::string kernel_name() const;
};

/** A matrix [columns, axis]. It has biases if the format is affine. */
struct QuantizedWeight {
  mx::array packed;
  mx::array scales;
  std::optional<mx::array> biases;
};

/** Throws for group sizes and bits that no kernel supports. */
void require_format(const char* op, const QuantizedFormat& format);

/** Throws if the arrays are not a matrix of this format. */
void require_quantized(
    const char* op, const QuantizedWeight& weight, const QuantizedFormat& format);

/** The unpacked matrix, or rows of it, [..., axis]. */
mx::array unpacked(
    const QuantizedWeight& weight, const QuantizedFormat& format, mx::Dtype dtype, mx::Stream s);

/**
 * Whether a GPU has no kernel for this format and this type of x, so that the matrix is unpacked
 * before products.
 */
bool unpacks_first(const QuantizedFormat& format, mx::Dtype dtype, mx::Stream s);

/**
 * Throws for a graph that was built for a CPU's kernels and is evaluated by a GPU, and for scales
 * that no kernel can load.
 */
void require_gpu_kernel(
    const char* op, const QuantizedFormat& format, mx::Dtype dtype, const mx::array& scales);

/** MLX's own product x * W^T, or x * W. */
mx::array mlx_product(
    const mx::array& x,
    const QuantizedWeight& weight,
    const QuantizedFormat& format,
    mx::Stream s,
    bool transposed = true);

/** The operations that a product is fused with. */
struct QuantizedExtras {
  std::optional<mx::array> norm; // weight of an RMS normalization of x, [axis]
  float eps = 0;
  std::optional<mx::array> bias;     // [columns of the result]
  std::optional<mx::array> residual; // of the result's shape
  bool swiglu = false;               // silu(first) * second instead of joining them
  bool int8 = false;                 // CPU kernels may round x to eight bits
  bool centered = false; // each bias is the scale times minus half of the number of codes
  RowOrder order = row_order();
};

/** x * W^T for up to three W of one format, joined along the last axis. */
mx::array quantized_matmul(
    const mx::array& x,
    const std::vector<QuantizedWeight>& weights,
    const QuantizedFormat& format,
    const QuantizedExtras& extras,
    mx::StreamOrDevice s = {});

struct QuantizedMatmulParams; // of metal/quantized_matmul.h

/**
 * Whether few rows of x can use the kernels for NVIDIA GPUs, which are for 16-bit types; and
 * whether `packed` is aligned to loads of 16 bytes, as these kernels require.
 */
bool takes_few(mx::Dtype dtype, mx::Stream stream);
bool is_aligned(const mx::array& packed);

/** Plans the kernels for few rows on NVIDIA GPUs, for one row of x or bands of two or eight. */
Launch plan_few(
    QuantizedMatmulParams& params,
    const QuantizedFormat& format,
    const std::string& dtype,
    uint32_t max_threads,
    mx::Stream stream);

/**
 * Inputs: x, the arrays of each weight, then the norm's weight, the bias and the residual, if
 * present. All are row-contiguous, and all floating inputs have one type. Only the scales and
 * biases of affine weights can have another type, as `read_as` says.
 */
class QuantizedMatmul : public ComposedPrimitive {
 public:
  /** The properties that two equivalent primitives share. */
  struct Kind {
    QuantizedFormat format;
    int parts;
    bool swiglu;
    bool normed;
    float eps;
    bool biased;
    bool added;
    bool int8;
    bool centered;
    RowOrder order;

    bool operator==(const Kind&) const = default;
  };

  QuantizedMatmul(mx::Stream stream, Kind kind) : ComposedPrimitive(stream), kind_(kind) {}

  COMPOSED_METHODS(QuantizedMatmul)
  std::vector<mx::Shape> output_shapes(const Arrays& inputs) override;
  bool cpu_alone(const Arrays& inputs) const override {
    return mixes(inputs);
  }
  std::vector<size_t> donors(const Arrays& inputs) const override {
    return kind_.added ? std::vector<size_t>{inputs.size() - 1} : std::vector<size_t>{};
  }
  VJP_METHOD
  VMAP_METHOD

 private:
  /** The number of arrays of a weight. */
  int stride() const {
    return kind_.format.affine() ? 3 : 2;
  }
  /** Whether the scales and biases have another type than x. */
  bool mixes(const Arrays& inputs) const {
    return kind_.format.affine() && inputs[2].dtype() != inputs[0].dtype();
  }
  QuantizedWeight weight(const Arrays& inputs, int part) const;
  QuantizedExtras extras(const Arrays& inputs) const;
  int columns(const Arrays& inputs) const;
  mx::array of_groups(
      const mx::array& g, const mx::array& x, const QuantizedWeight& weight, bool of_scales);

  Kind kind_;
};

} // namespace mlx_primitives

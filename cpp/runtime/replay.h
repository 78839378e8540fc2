// A node that runs a recorded graph.
#pragma once

#include <memory>
#include <vector>

#include "runtime/failure.h"
#include "runtime/recording.h"

namespace mlx_primitives {

/** One run of a recording. Inputs are its parameters, outputs its results. */
class Replay : public ComposedPrimitive {
 public:
  Replay(mx::Stream stream, std::shared_ptr<const Recording> recording, int positions)
      : ComposedPrimitive(stream), recording_(std::move(recording)), positions_(positions) {}

  COMPOSED_METHODS(Replay)
  std::vector<mx::Shape> output_shapes(const Arrays&) override {
    return recording_->shapes_;
  }
  size_t updates() const override {
    return recording_->shapes_.size() - 1;
  }

 private:
  using Source = Recording::Source;
  struct Step {
    std::shared_ptr<FusedPrimitive> primitive;
    Arrays inputs;
    Arrays outputs;
    Arrays positions; // inputs that `later` made
  };

  /** The views of these parameters; without memory, only their shapes. */
  Arrays views(const Arrays& inputs) const;

  /** A stage for these parameters, their views, and results. */
  Step step(
      const Recording::Stage& stage,
      const Arrays& inputs,
      const Arrays& views,
      const Arrays& outputs) const;

  std::shared_ptr<const Recording> recording_;
  int positions_;
};

/** A run of a recording that has stages which can fail. All of it is one task. */
class FallibleReplay final : public Replay, public Fallible {
 public:
  using Replay::Replay;

  void queue_on_cpu(const Arrays& inputs, Arrays& outputs) override;
};

/** The view of memory that an op of MLX's makes, which is a slice of a row or that row itself. */
mx::array view_of(mx::Primitive& op, const mx::array& from, const mx::array& like);

} // namespace mlx_primitives

// Graphs of this crate's primitives that are built once and run many times.
#pragma once

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "runtime/primitive.h"

namespace mlx_primitives {

/**
 * The graph from some arrays, its parameters, to its results, for a text that gets longer: it can
 * be run as one node for other parameters, and some positions later. Everything else that the
 * graph reads is kept and read again. Results that only the graph reads lie in memory which every
 * run uses; the runs are on one CPU stream, so in order.
 */
class Recording : public std::enable_shared_from_this<Recording> {
 public:
  /**
   * Records a lazy graph. The first results are parameters that ops update: result i is parameter
   * i, changed in place; there is one more result and one more parameter. Returns null for a graph
   * that has nodes of MLX's, except views of one row, or that cannot be run later, and for one that
   * reads arrays that are not computed yet, for which `pending` is set.
   */
  static std::shared_ptr<Recording> of(
      const Arrays& parameters, const Arrays& results, bool& pending);

  mx::Stream stream() const {
    return stream_;
  }

  /** The results, lazy, for other parameters of the same shapes and types. */
  Arrays run(const Arrays& parameters, int positions) const;

 private:
  friend class Replay;

  /**
   * Where an array of a stage lies: in memory of the recording, or in an array of a run, which is a
   * parameter, a result, or a view of a parameter.
   */
  enum class Source { kept, parameter, result, view };
  struct Place {
    Source source;
    size_t index; // of the parameter, the result or the view
  };

  /** A part of a parameter, or of such a part. */
  struct View {
    std::shared_ptr<mx::Primitive> primitive; // of MLX's; null for the whole
    Place from;
    mx::array shape; // without memory
  };

  struct Stage {
    std::shared_ptr<FusedPrimitive> primitive; // null for a view
    std::shared_ptr<mx::Primitive> view;
    Arrays inputs;
    Arrays outputs;
    std::vector<Place> from;
    std::vector<Place> to;
    bool moves;   // names a position
    CpuCall call; // if it reads and writes only memory of the recording
  };

  /** A run's calls of the stages that have none, and arrays that they read and only this keeps. */
  struct Calls {
    std::vector<CpuCall> calls;
    Arrays kept;
  };

  explicit Recording(mx::Stream stream) : stream_(stream) {}
  bool add(const mx::array& node, const Arrays& parameters, const Arrays& results);
  bool reuse_memory();

  /**
   * Keeps the calls of a run and frees those of runs that have ended. The stream's thread does not:
   * it would wait for locks of the thread that allocated them.
   */
  void keep(std::shared_ptr<const Calls> calls) const;

  mx::Stream stream_;
  std::vector<Stage> stages_;
  std::vector<View> views_; // of parameters
  bool has_views_ = false;  // of memory of the recording
  bool can_fail_ = false;
  std::vector<std::pair<mx::Shape, mx::Dtype>> given_; // the parameters
  std::vector<mx::Shape> shapes_;                      // of the results
  std::vector<mx::Dtype> dtypes_;
  mutable std::mutex mutex_;
  mutable std::vector<std::shared_ptr<const Calls>> runs_;
};

} // namespace mlx_primitives

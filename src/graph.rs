//! The cost of a lazy graph on a GPU, counted from its nodes before anything is evaluated.

use crate::array::{Array, to_list};
use crate::error::Result;
use crate::ffi::bridge as ffi;

/// A node of a graph that has not been evaluated yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The name of the primitive, such as `Softmax`.
    pub name: String,
    /// Whether the primitive is one of ours, or a custom one, rather than one of MLX's.
    pub ours: bool,
    /// The number of GPU dispatches that evaluating the node makes; 0 for a view.
    pub dispatches: u32,
    /// The least number of bytes that these dispatches read from and write to device memory.
    pub device_bytes: usize,
}

/// The total cost of a graph.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// The number of GPU dispatches.
    pub dispatches: u32,
    /// The least number of bytes that the dispatches read from and write to device memory.
    pub device_bytes: usize,
}

/// MLX's primitives whose results are views of their input's memory. `Reshape` and `Contiguous`
/// copy an input that is not contiguous. The count assumes contiguous inputs.
const VIEWS: &str = "\
    AsStrided Barrier Broadcast BroadcastAxes Contiguous CustomTransforms Depends ExpandDims \
    Flatten NumberOfElements Reshape Slice Split Squeeze StopGradient Transpose Unflatten";

/// The nodes that an evaluation of `arrays` would run. The first one computes the last array.
///
/// A node of MLX counts as one dispatch, as in MLX's Metal backend, but a view counts as none. A
/// node of a custom primitive counts as one dispatch too, since its launches are known only at its
/// evaluation. For one of our nodes, the dispatches of its `eval_gpu` count.
///
/// # Errors
///
/// Returns an error if a primitive cannot plan its dispatches, for example because its metallib is
/// refused.
///
/// ```
/// use mlx_primitives::{Array, graph, ops};
///
/// let x = Array::ones::<f32>(&[2, 8])?;
/// x.eval()?;
/// let y = ops::softmax(&x.reshape(&[4, 4])?)?;
/// let nodes = graph::nodes([&y])?;
/// assert_eq!((nodes[0].name.as_str(), nodes[0].device_bytes), ("Softmax", 128));
/// assert_eq!(graph::total(&nodes).dispatches, 1);
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub fn nodes<'a>(arrays: impl IntoIterator<Item = &'a Array>) -> Result<Vec<Node>> {
    Ok(ffi::graph_nodes(&to_list(arrays))?.into_iter().map(Node::from).collect())
}

/// The total cost of the nodes.
pub fn total(nodes: &[Node]) -> Cost {
    nodes.iter().fold(Cost::default(), |sum, node| Cost {
        dispatches: sum.dispatches + node.dispatches,
        device_bytes: sum.device_bytes + node.device_bytes,
    })
}

/// One dispatch of a Metal kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dispatch {
    /// The kernel's name in the metallib.
    pub kernel: String,
    /// The number of threadgroups in each dimension.
    pub grid: [u32; 3],
    /// The number of threads of a threadgroup in each dimension.
    pub group: [u32; 3],
    /// Threadgroup memory, in bytes.
    pub threadgroup_bytes: u32,
}

/// The largest threadgroup of every Apple GPU, in threads.
pub const MAX_THREADS: u32 = 1024;

/// The dispatches, in order, that a GPU would run to evaluate a lazy result of one of our ops. The
/// function assumes that pipelines allow up to `max_threads` threads in a threadgroup. Nothing is
/// evaluated, and no GPU is needed.
///
/// Inputs that are not evaluated count as row-contiguous. If the result may take over the memory of
/// an input, the function assumes that it does.
///
/// # Errors
///
/// Returns an error if `array` is evaluated, or the result of another library's op, or if no
/// kernel can count its elements or run in a threadgroup of `max_threads`.
///
/// ```
/// use mlx_primitives::{Array, graph, ops};
///
/// let x = Array::zeros::<half::f16>(&[8, 4096])?;
/// let launch = &graph::dispatches(&ops::softmax(&x)?, graph::MAX_THREADS)?[0];
/// assert_eq!(launch.kernel, "mlxp_softmax_row_float16");
/// assert_eq!((launch.grid, launch.group), ([8, 1, 1], [1024, 1, 1]));
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub fn dispatches(array: &Array, max_threads: u32) -> Result<Vec<Dispatch>> {
    let launches = ffi::dispatches(array.raw(), max_threads)?;
    Ok(launches
        .into_iter()
        .map(|ffi::LaunchPlan { kernel, grid, group, threadgroup_bytes }| Dispatch {
            kernel,
            grid,
            group,
            threadgroup_bytes,
        })
        .collect())
}

impl From<ffi::GraphNode> for Node {
    fn from(node: ffi::GraphNode) -> Self {
        let name = node.name;
        let (dispatches, device_bytes) = match name.as_str() {
            _ if node.ours => (node.dispatches, node.device_bytes),
            view if VIEWS.split(' ').any(|it| it == view) => (0, 0),
            // These primitives move only the selected rows, and not the whole array.
            "Gather" | "GatherAxis" => (1, 2 * node.output_bytes + node.last_input_bytes),
            "SliceUpdate" => (1, 2 * node.last_input_bytes),
            _ => (1, node.input_bytes + node.output_bytes),
        };
        Self { name, ours: node.ours, dispatches, device_bytes }
    }
}

//! What a lazy graph will cost on a GPU, counted from its nodes before anything is evaluated.

use crate::array::{Array, to_list};
use crate::error::Result;
use crate::ffi::bridge as ffi;

/// A node of a graph that has not been evaluated yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The primitive's name.
    pub name: String,
    /// Whether it is one of ours.
    pub ours: bool,
    /// GPU dispatches of its evaluation; none for a view.
    pub dispatches: u32,
    /// The least that these dispatches read from and write to device memory, in bytes.
    pub device_bytes: usize,
}

/// What a graph costs in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// GPU dispatches.
    pub dispatches: u32,
    /// Bytes read from and written to device memory, at least.
    pub device_bytes: usize,
}

/// Built-ins of MLX that only describe their input's memory anew. A reshape or a `contiguous`
/// copies what is not contiguous; the graphs counted here give it what is.
const VIEWS: [&str; 17] = [
    "AsStrided",
    "Barrier",
    "Broadcast",
    "BroadcastAxes",
    "Contiguous",
    "CustomTransforms",
    "Depends",
    "ExpandDims",
    "Flatten",
    "NumberOfElements",
    "Reshape",
    "Slice",
    "Split",
    "Squeeze",
    "StopGradient",
    "Transpose",
    "Unflatten",
];

/// The nodes that evaluating `arrays` would run, the results first.
///
/// A node of MLX's own counts as the one dispatch that its Metal backend makes of it, a view as
/// none; one of ours counts what its `eval_gpu` dispatches.
///
/// # Errors
///
/// Returns an error if a primitive cannot say what it will dispatch, for example because its
/// metallib is refused.
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

/// The sum over the nodes.
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
    /// Threadgroups in each dimension.
    pub grid: [u32; 3],
    /// Threads of a threadgroup in each dimension.
    pub group: [u32; 3],
    /// Threadgroup memory, in bytes.
    pub threadgroup_bytes: u32,
}

/// The largest threadgroup of every Apple GPU, in threads.
pub const MAX_THREADS: u32 = 1024;

/// What evaluating a lazy result of one of our ops on a GPU dispatches, in order, for pipelines that
/// take up to `max_threads` threads in a group. Nothing is evaluated, and no GPU is needed.
///
/// Inputs that are not evaluated are taken to be row-contiguous, and an input whose memory the result
/// may take over to give it up.
///
/// # Errors
///
/// Returns an error if `array` is evaluated, or the result of another library's op, or if no
/// kernel can count its elements or run in so small a group.
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
            view if VIEWS.contains(&view) => (0, 0),
            // Only the rows that are asked for, or written, move.
            "Gather" | "GatherAxis" => (1, 2 * node.output_bytes + node.last_input_bytes),
            "SliceUpdate" => (1, 2 * node.last_input_bytes),
            _ => (1, node.input_bytes + node.output_bytes),
        };
        Self { name, ours: node.ours, dispatches, device_bytes }
    }
}

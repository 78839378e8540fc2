//! Fuzzes graphs of random ops. Several threads evaluate them, and some primitives fail. Every
//! array that depends on a failed array must return an error. An array that was evaluated together
//! with one may return an error. All others must have the values that plain Rust computes.

use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use fastrand::Rng;
use mlx_primitives::custom::{CustomPrimitive, Spec, View, ViewMut, apply};
use mlx_primitives::device::{Device, Stream, synchronize, with_stream};
use mlx_primitives::{Array, Error, Result, async_eval, eval, ops};

use super::case::{Case, Fuzzer, Run};
use super::child::last_panic;
use super::mutation::{once_in, one};

pub const FUZZER: Fuzzer = Fuzzer { name: "graphs", allowance: 128 << 20, prepare };

/// `Ok(true)` if nothing in a graph failed, or the message of the panic that ended it.
type Outcome = std::result::Result<bool, String>;

/// These threads run all cases, because MLX never frees the streams of threads that have ended.
const THREADS: usize = 3;

fn prepare(_: &Path) -> anyhow::Result<Run> {
    let workers: Vec<(Sender<u64>, Receiver<Outcome>)> = (0..THREADS)
        .map(|_| {
            let (seeds, inbox) = channel();
            let (outbox, outcomes) = channel();
            thread::spawn(move || work(&inbox, &outbox));
            (seeds, outcomes)
        })
        .collect();
    Ok(Box::new(move |rng| {
        let busy = &workers[..1 + rng.usize(..THREADS)];
        busy.iter().for_each(|(seeds, _)| seeds.send(rng.u64(..)).expect("a thread that lives"));
        let outcomes: Vec<_> =
            busy.iter().map(|(_, outcomes)| outcomes.recv().expect("an outcome")).collect();
        let mut accepted = true;
        for outcome in outcomes {
            accepted &= outcome.unwrap_or_else(|panic| panic!("a thread {panic}"));
        }
        Case { input: 0, accepted }
    }))
}

/// Runs a graph for each seed.
fn work(seeds: &Receiver<u64>, outcomes: &Sender<Outcome>) {
    let streams =
        [Stream::new(Device::Cpu), Stream::new(Device::Cpu)].map(|s| s.expect("a stream"));
    for seed in seeds {
        let run = || Graph::new(Rng::with_seed(seed)).run(&streams);
        let outcome = catch_unwind(AssertUnwindSafe(run)).map_err(|_| last_panic());
        if outcomes.send(outcome).is_err() {
            break;
        }
    }
}

/// The behavior of a user's primitive.
#[derive(Clone, Copy, PartialEq)]
enum Deed {
    Computes,
    /// Computes after a short sleep.
    Sleeps,
    Errs,
    Panics,
    PanicsWithoutWords,
}

/// A primitive whose outputs are the sum and the difference of two arrays.
struct Custom(Deed);

impl CustomPrimitive for Custom {
    fn name(&self) -> &str {
        "fuzzed"
    }

    fn outputs(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        Ok(vec![inputs[0].clone(), inputs[0].clone()])
    }

    fn eval_cpu(&self, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
        match self.0 {
            Deed::Computes => {}
            Deed::Sleeps => thread::sleep(Duration::from_micros(300)),
            Deed::Errs => return Err(Error::from("on purpose")),
            Deed::Panics => panic!("on purpose"),
            Deed::PanicsWithoutWords => panic_any(7),
        }
        let (a, b) = (inputs[0].as_slice::<f32>()?, inputs[1].as_slice::<f32>()?);
        for (index, (a, b)) in a.iter().zip(b).enumerate() {
            outputs[0].as_mut_slice::<f32>()?[index] = a + b;
            outputs[1].as_mut_slice::<f32>()?[index] = a - b;
        }
        Ok(())
    }
}

struct Node {
    /// The array, or `None` after it was dropped.
    array: Option<Array>,
    /// The values that the array must have. Plain Rust computes them.
    value: Vec<f32>,
    inputs: Vec<usize>,
    /// The index of the node for the other output of the same primitive.
    sibling: Option<usize>,
    /// True if this array fails, or depends on an array that fails.
    fails: bool,
    /// True if an evaluation in which nothing fails has started to compute this array.
    begun: bool,
    /// True if this array was part of an evaluation that failed. The array may then fail too.
    exposed: bool,
}

struct Graph {
    rng: Rng,
    /// All arrays are square matrices with this number of rows.
    rows: usize,
    nodes: Vec<Node>,
    failing: bool,
    failed: bool,
}

impl Graph {
    fn new(mut rng: Rng) -> Self {
        let rows = *one(&mut rng, &[1, 3, 16, 16, 100]);
        let failing = rng.bool();
        Self { rng, rows, nodes: Vec::new(), failing, failed: false }
    }

    /// Builds and evaluates arrays in a random order. Returns true if nothing failed.
    fn run(mut self, streams: &[Stream]) -> bool {
        self.leaf();
        for _ in 0..self.rng.usize(5..40) {
            let stream = self.rng.usize(..3);
            let mut step = || self.step();
            match streams.get(stream) {
                Some(stream) => with_stream(stream, &mut step),
                None => step(),
            }
        }
        if self.rng.bool() {
            let live: Vec<usize> = self.live().collect();
            live.into_iter().for_each(|node| self.read(node));
        }
        !self.failed
    }

    fn step(&mut self) {
        match self.rng.u8(..16) {
            0 => self.leaf(),
            1..=8 => self.grow(),
            9 | 10 => self.evaluate(false),
            11 | 12 => self.evaluate(true),
            13 | 14 => {
                if let Some(node) = self.any() {
                    self.read(node);
                }
            }
            _ => {
                if once_in(&mut self.rng, 4) {
                    let _ = synchronize(); // may report the failure of a node
                } else if let Some(node) = self.any() {
                    self.nodes[node].array = None;
                }
            }
        }
    }

    fn live(&self) -> impl Iterator<Item = usize> {
        (0..self.nodes.len()).filter(|&node| self.nodes[node].array.is_some())
    }

    fn any(&mut self) -> Option<usize> {
        let live: Vec<usize> = self.live().collect();
        self.rng.choice(live)
    }

    fn add(&mut self, array: Array, value: Vec<f32>, inputs: &[usize], fails: bool) {
        let fails = fails || inputs.iter().any(|&input| self.nodes[input].fails);
        let (inputs, begun) = (inputs.to_vec(), inputs.is_empty());
        let array = Some(array);
        self.nodes.push(Node { array, value, inputs, sibling: None, fails, begun, exposed: false });
    }

    fn leaf(&mut self) {
        let value: Vec<f32> =
            (0..self.rows * self.rows).map(|_| self.rng.i32(-9..10) as f32).collect();
        let rows = self.rows as i32;
        let array = Array::from_slice(&value, [rows, rows]).expect("an array");
        self.add(array, value, &[], false);
    }

    /// Adds an op on existing arrays.
    fn grow(&mut self) {
        let (Some(a), Some(b)) = (self.any(), self.any()) else { return self.leaf() };
        let array = |node: usize| self.nodes[node].array.clone().expect("a live array");
        let (x, y) = (array(a), array(b));
        let (v, w) = (&self.nodes[a].value, &self.nodes[b].value);
        let unary = |f: fn(f32) -> f32| v.iter().map(|&x| f(x)).collect::<Vec<f32>>();
        let binary =
            |f: fn(f32, f32) -> f32| v.iter().zip(w).map(|(&x, &y)| f(x, y)).collect::<Vec<f32>>();
        let (array, value, inputs) = match self.rng.u8(..10) {
            0 => (x.add(&y), binary(|x, y| x + y), vec![a, b]),
            1 => (x.subtract(&y), binary(|x, y| x - y), vec![a, b]),
            2 => (x.maximum(&y), binary(f32::max), vec![a, b]),
            3 => (x.negative(), unary(|x| -x), vec![a]),
            4 => (ops::relu(&x), unary(|x| x.max(0.0)), vec![a]),
            5 => (ops::add_relu(&x, &y), binary(|x, y| (x + y).max(0.0)), vec![a, b]),
            6 => {
                let (rows, at) = (self.rows, |i: usize, rows: usize| (i % rows) * rows + i / rows);
                (x.t(), (0..v.len()).map(|i| v[at(i, rows)]).collect(), vec![a])
            }
            _ => return self.grow_custom(a, b),
        };
        self.add(array.expect("a lazy array"), value, &inputs, false);
    }

    fn grow_custom(&mut self, a: usize, b: usize) {
        let deeds = [Deed::Errs, Deed::Panics, Deed::PanicsWithoutWords];
        let deed = match self.rng.u8(..4) {
            0 if self.failing => *one(&mut self.rng, &deeds),
            1 => Deed::Sleeps,
            _ => Deed::Computes,
        };
        let (x, y) = (&self.nodes[a], &self.nodes[b]);
        let inputs = [&x.array, &y.array].map(|array| array.as_ref().expect("a live array"));
        let outputs = apply(Custom(deed), &inputs).expect("lazy arrays");
        let pairs: Vec<(f32, f32)> = x.value.iter().copied().zip(y.value.iter().copied()).collect();
        let sums = pairs.iter().map(|(x, y)| x + y).collect();
        let differences = pairs.iter().map(|(x, y)| x - y).collect();
        let fails = !matches!(deed, Deed::Computes | Deed::Sleeps);
        for (array, value) in outputs.into_iter().zip([sums, differences]) {
            self.add(array, value, &[a, b], fails);
        }
        let last = self.nodes.len() - 1;
        self.nodes[last].sibling = Some(last - 1);
        self.nodes[last - 1].sibling = Some(last);
    }

    /// The nodes that MLX computes when it evaluates the nodes `of`.
    fn pending(&self, of: &[usize]) -> Vec<usize> {
        let (mut found, mut left) = (Vec::new(), of.to_vec());
        while let Some(node) = left.pop() {
            if !self.nodes[node].begun && !found.contains(&node) {
                found.push(node);
                left.extend(self.nodes[node].inputs.iter().chain(&self.nodes[node].sibling));
            }
        }
        found
    }

    /// Whether a node may fail because an evaluation computed it, or a node that it depends on,
    /// together with a failing node.
    fn may_fail(&self, node: usize) -> bool {
        let mut may = Vec::new();
        for Node { exposed, inputs, .. } in &self.nodes[..=node] {
            may.push(*exposed || inputs.iter().any(|&input| may[input]));
        }
        may[node]
    }

    /// Records that an evaluation of the nodes `of` starts.
    fn begin(&mut self, of: &[usize]) {
        let fails = of.iter().any(|&node| self.nodes[node].fails);
        for node in self.pending(of) {
            // If the evaluation fails, the next one computes these nodes again, so they do not
            // count as begun.
            self.nodes[node].begun = !fails;
            self.nodes[node].exposed |= fails;
        }
    }

    fn evaluate(&mut self, later: bool) {
        let some: Vec<usize> = (0..1 + self.rng.usize(..3)).filter_map(|_| self.any()).collect();
        let arrays: Vec<Array> =
            some.iter().filter_map(|&node| self.nodes[node].array.clone()).collect();
        let result = if later { async_eval(&arrays) } else { eval(&arrays) };
        let fails = some.iter().any(|&node| self.nodes[node].fails);
        let may_fail = some.iter().any(|&node| self.may_fail(node));
        match result {
            Ok(()) => assert!(later || !fails, "an evaluation of what fails is Ok"),
            Err(error) => {
                assert!(fails || may_fail, "an unrelated evaluation failed: {error}");
                self.failed = true;
            }
        }
        self.begin(&some);
    }

    fn read(&mut self, node: usize) {
        let may_fail = self.may_fail(node);
        let Node { array, value, fails, .. } = &self.nodes[node];
        let Some(array) = array else { return };
        match array.to_vec::<f32>() {
            Ok(read) => {
                assert!(!fails, "what fails can be read");
                assert!(read == *value, "{read:?} instead of {value:?}");
            }
            Err(error) => {
                assert!(*fails || may_fail, "an unrelated array cannot be read: {error}");
                self.failed = true;
            }
        }
        self.begin(&[node]);
    }
}

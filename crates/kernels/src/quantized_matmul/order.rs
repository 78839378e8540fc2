//! Divides the columns of a product among threads. Remembers the order of products, which is the
//! same for every token. So helpers that wait for the next product can prefetch its first weights,
//! while one thread computes the steps between the products.

use std::cell::Cell;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::{Call, Join};
use crate::Machine;
use crate::pool::Pool;
use crate::pool::coming::{Coming, Read};
use crate::simd::LANES;

/// The number of products that are remembered: more than a large model has.
const SLOTS: usize = 1024;
/// The least work of a product that is remembered, in tenths of a nanosecond. The weights of
/// smaller products are small enough to stay in caches.
const LEAST_WORK: usize = 200_000;

/// A product: the address of its first weights, and the address of the first weights of the product
/// after it.
struct Slot {
    weights: AtomicUsize,
    next: AtomicUsize,
    reads: Coming,
}

static PRODUCTS: [Slot; SLOTS] = [const { Slot::new() }; SLOTS];

thread_local! {
    /// The address of the first weights of the thread's last product.
    static LAST: Cell<usize> = const { Cell::new(0) };
}

impl Slot {
    const fn new() -> Self {
        Self { weights: AtomicUsize::new(0), next: AtomicUsize::new(0), reads: Coming::none() }
    }
}

/// The slot of a product. Two products with the same slot replace each other.
fn slot(weights: usize) -> &'static Slot {
    &PRODUCTS[(weights >> 6).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (usize::BITS - 10)]
}

/// Divides the columns of the result among the threads.
pub fn each_range(machine: Machine, call: &Call, bits: usize, run: &(dyn Fn(Range<usize>) + Sync)) {
    let products = if call.join == Join::Swiglu { 2 } else { 1 };
    let bytes = products * call.axis * bits / 8;
    // A core reads about twenty bytes per nanosecond. Two rows of x cost as much as one, and each
    // further pair costs half as much.
    let work = bytes * (1 + call.rows.div_ceil(2)) / 2 / 2 + 10;
    let columns = call.columns();
    follow(machine.pool, call, LANES * work, call.axis * bits / 8);
    machine.pool.for_each(columns.div_ceil(LANES), LANES * work, &|blocks| {
        run(LANES * blocks.start..columns.min(LANES * blocks.end));
    });
}

/// Remembers a product of few rows, and tells the pool which product will probably follow.
fn follow(pool: &Pool, call: &Call, work: usize, bytes_of_row: usize) {
    let items = call.columns().div_ceil(LANES);
    if pool.threads() == 1 || items.saturating_mul(work) < LEAST_WORK {
        return;
    }
    let Some(first) = call.weights.first() else { return };
    let this = first.packed.addr();
    let product = slot(this);
    if product.weights.swap(this, Relaxed) != this {
        product.next.store(0, Relaxed);
    }
    let mut before = 0;
    product.reads.set(
        items,
        pool.team(items.saturating_mul(work)).min(items),
        call.weights.iter().map(|weights| {
            let begin = before;
            if call.join == Join::Concatenate {
                before += weights.columns;
            }
            Read {
                address: weights.packed.addr(),
                bytes_of_item: LANES * bytes_of_row,
                items: begin / LANES..(begin + weights.columns) / LANES,
            }
        }),
    );
    let last = slot(LAST.replace(this));
    if last.next.load(Relaxed) != this {
        last.next.store(this, Relaxed);
    }
    let next = product.next.load(Relaxed);
    let coming = slot(next);
    if next != 0 && coming.weights.load(Relaxed) == next {
        pool.coming().copy(&coming.reads);
    }
}

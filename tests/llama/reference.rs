//! A float64 Llama that runs one simple operation at a time.

use anyhow::Result;

use crate::support::input::values;

#[derive(Clone, Copy)]
pub struct Shape {
    pub hidden: usize,
    pub inner: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
}

/// A matrix `[outputs, inputs]`.
pub struct Matrix {
    pub numbers: Vec<f64>,
    pub inputs: usize,
}

impl Matrix {
    fn row(&self, index: usize) -> &[f64] {
        &self.numbers[index * self.inputs..][..self.inputs]
    }

    fn times(&self, x: &[f64]) -> Vec<f64> {
        self.numbers.chunks_exact(self.inputs).map(|row| dot(row, x)).collect()
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    crate::table::reference_loops::dot(a, b).0
}

struct Layer {
    input_norm: Vec<f64>,
    q: Matrix,
    k: Matrix,
    v: Matrix,
    o: Matrix,
    post_norm: Vec<f64>,
    gate: Matrix,
    up: Matrix,
    down: Matrix,
}

pub struct Reference {
    shape: Shape,
    embedding: Matrix,
    layers: Vec<Layer>,
    norm: Vec<f64>,
    head: Matrix,
}

impl Reference {
    /// Creates a model. `matrix` returns each matrix for a name and the numbers of rows and
    /// columns. The norms are created here.
    pub fn new(
        shape: Shape,
        layers: usize,
        vocab: usize,
        matrix: &mut dyn FnMut(String, usize, usize) -> Result<Matrix>,
    ) -> Result<Self> {
        let Shape { hidden, inner, heads, kv_heads, head_dim } = shape;
        // The numbers are near 1 and multiples of 1/128. Every floating-point type represents them
        // exactly.
        let norm = |seed: usize| -> Vec<f64> {
            let around = values(hidden, seed as u64, 32.0);
            around.iter().map(|x| 1.0 + f64::from(x.round()) / 128.0).collect()
        };
        let embedding = matrix("model.embed_tokens".into(), vocab, hidden)?;
        let layers = (0..layers).map(|i| {
            let mut at = |name: &str, outputs, inputs| {
                matrix(format!("model.layers.{i}.{name}"), outputs, inputs)
            };
            Ok(Layer {
                input_norm: norm(2 * i),
                q: at("self_attn.q_proj", heads * head_dim, hidden)?,
                k: at("self_attn.k_proj", kv_heads * head_dim, hidden)?,
                v: at("self_attn.v_proj", kv_heads * head_dim, hidden)?,
                o: at("self_attn.o_proj", hidden, heads * head_dim)?,
                post_norm: norm(2 * i + 1),
                gate: at("mlp.gate_proj", inner, hidden)?,
                up: at("mlp.up_proj", inner, hidden)?,
                down: at("mlp.down_proj", hidden, inner)?,
            })
        });
        let layers = layers.collect::<Result<Vec<_>>>()?;
        let head = matrix("lm_head".into(), vocab, hidden)?;
        Ok(Self { shape, embedding, norm: norm(1000), layers, head })
    }

    /// The norms' weights by name.
    pub fn norms(&self) -> Vec<(String, &[f64])> {
        let mut norms: Vec<(String, &[f64])> = vec![("model.norm.weight".into(), &self.norm)];
        for (i, layer) in self.layers.iter().enumerate() {
            let path = format!("model.layers.{i}");
            norms.push((format!("{path}.input_layernorm.weight"), &layer.input_norm));
            norms.push((format!("{path}.post_attention_layernorm.weight"), &layer.post_norm));
        }
        norms
    }

    /// The logits after each token.
    pub fn logits(&self, tokens: &[u32]) -> Vec<f64> {
        let embedded = |&token: &u32| self.embedding.row(token as usize).to_vec();
        let mut states: Vec<Vec<f64>> = tokens.iter().map(embedded).collect();
        for layer in &self.layers {
            self.run(layer, &mut states);
        }
        let last = |state: &Vec<f64>| self.head.times(&normalized(state, &self.norm));
        states.iter().flat_map(last).collect()
    }

    fn run(&self, layer: &Layer, states: &mut [Vec<f64>]) {
        let Shape { heads, kv_heads, head_dim, .. } = self.shape;
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        for (position, state) in states.iter_mut().enumerate() {
            let x = normalized(state, &layer.input_norm);
            let queries = self.rotated(layer.q.times(&x), position);
            keys.push(self.rotated(layer.k.times(&x), position));
            values.push(layer.v.times(&x));
            let mut attended = Vec::new();
            for head in 0..heads {
                let at = head / (heads / kv_heads) * head_dim;
                let query = &queries[head * head_dim..][..head_dim];
                let score = |key: &Vec<f64>| {
                    (dot(query, &key[at..][..head_dim]) / (head_dim as f64).sqrt()).exp()
                };
                let weights: Vec<f64> = keys.iter().map(score).collect();
                let total: f64 = weights.iter().sum();
                attended.extend((0..head_dim).map(|i| {
                    let terms = weights.iter().zip(&values).map(|(w, value)| w * value[at + i]);
                    terms.sum::<f64>() / total
                }));
            }
            add(state, &layer.o.times(&attended));
            let x = normalized(state, &layer.post_norm);
            let silu = |x: f64| x / (1.0 + (-x).exp());
            let (gate, up) = (layer.gate.times(&x), layer.up.times(&x));
            let inner: Vec<f64> = gate.iter().zip(&up).map(|(g, u)| silu(*g) * u).collect();
            add(state, &layer.down.times(&inner));
        }
    }

    /// Rotates every head. A pair consists of a feature in the first half and one in the second
    /// half.
    fn rotated(&self, mut x: Vec<f64>, position: usize) -> Vec<f64> {
        let (features, half) = (self.shape.head_dim, self.shape.head_dim / 2);
        for head in x.chunks_exact_mut(features) {
            for i in 0..half {
                let angle = position as f64 * 10_000f64.powf(-(i as f64) / half as f64);
                let (a, b) = (head[i], head[i + half]);
                head[i] = a * angle.cos() - b * angle.sin();
                head[i + half] = a * angle.sin() + b * angle.cos();
            }
        }
        x
    }
}

fn normalized(x: &[f64], weight: &[f64]) -> Vec<f64> {
    let scale = 1.0 / (dot(x, x) / x.len() as f64 + 1e-5).sqrt();
    x.iter().zip(weight).map(|(x, w)| x * scale * w).collect()
}

fn add(to: &mut [f64], what: &[f64]) {
    to.iter_mut().zip(what).for_each(|(to, x)| *to += x);
}

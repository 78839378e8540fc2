//! The bridge to the ops of `cpp/ops/`, and to the built-in ops of MLX that `src/builtin.rs` calls.

#[allow(clippy::too_many_arguments)] // the C++ functions take that many
#[cxx::bridge(namespace = "mlx_primitives::bridge")]
pub(crate) mod bridge {
    /// The activations, in the order of metal/activation.h (asserted in cpp/bridge/ops.cpp).
    #[repr(u8)]
    enum ActivationKind {
        None,
        Relu,
        Gelu,
        GeluTanh,
        Silu,
        Swiglu,
        Geglu,
        GegluTanh,
        AddRelu,
        MulRelu,
    }

    /// The parameters that turn attention scores into weights. A window or a cap of 0 means `None`.
    struct AttentionRules {
        scale: f32,
        causal: bool,
        window: i32,
        soft_cap: f32,
        dropped: i32,
    }

    /// The modes of packed weights. cxx asserts that `cpp/ops/quantized_matmul.h` has the same
    /// modes.
    #[namespace = "mlx_primitives"]
    #[repr(u8)]
    enum QuantizedMode {
        Affine,
        Mxfp4,
        Mxfp8,
        Nvfp4,
        KQuant,
    }

    /// How weights are packed.
    #[derive(Clone, Copy)]
    struct QuantizedLayout {
        group_size: i32,
        bits: i32,
        mode: QuantizedMode,
    }

    /// Parameters of the steps before and after a quantized product. The arrays of these steps are
    /// separate arguments.
    struct QuantizedSteps {
        eps: f32,
        swiglu: bool,
        int8: bool,
        centered: bool,
    }

    /// The reductions. cxx asserts that `cpp/ops/reduce.h` has the same reductions.
    #[namespace = "mlx_primitives"]
    #[repr(u8)]
    enum ReductionKind {
        Sum,
        Mean,
        Max,
        SumOfSquares,
        Norm,
    }

    /// The layout of a layer's state, the array of its keys and values.
    struct AppendLayout {
        heads: i32,
        kv_heads: i32,
        head_dim: i32,
        capacity: i32,
    }

    /// The rotation of queries and keys.
    struct AppendRotation {
        dims: i32,
        traditional: bool,
        has_base: bool,
        base: f32,
        scale: f32,
        multiplier: f32,
    }

    unsafe extern "C++" {
        include!("bridge/ops.h");

        #[namespace = "mlx::core"]
        #[cxx_name = "array"]
        type MlxArray = crate::ffi::bridge::MlxArray;
        type Dtype = crate::ffi::bridge::Dtype;

        fn activation(kind: ActivationKind, x: &MlxArray) -> Result<UniquePtr<MlxArray>>;
        fn activation_of_two(
            kind: ActivationKind,
            a: &MlxArray,
            b: &MlxArray,
        ) -> Result<UniquePtr<MlxArray>>;
        fn affine(x: &MlxArray, scale: &MlxArray, shift: &MlxArray) -> Result<UniquePtr<MlxArray>>;
        unsafe fn attention(
            q: &MlxArray,
            k: &MlxArray,
            v: &MlxArray,
            rules: &AttentionRules,
            mask: *const MlxArray,
            sinks: *const MlxArray,
        ) -> Result<UniquePtr<MlxArray>>;
        unsafe fn attention_quantized(
            q: &MlxArray,
            k: &CxxVector<MlxArray>,
            v: &CxxVector<MlxArray>,
            bits: i32,
            group_size: i32,
            rules: &AttentionRules,
            mask: *const MlxArray,
            sinks: *const MlxArray,
        ) -> Result<UniquePtr<MlxArray>>;
        fn dequantizing_composition(array: &MlxArray) -> Result<UniquePtr<CxxVector<MlxArray>>>;
        fn cross_entropy(
            x: &MlxArray,
            targets: &MlxArray,
            smoothing: f32,
            ignores: bool,
            ignored: i32,
        ) -> Result<UniquePtr<MlxArray>>;
        unsafe fn layer_norm(
            x: &MlxArray,
            weight: *const MlxArray,
            bias: *const MlxArray,
            eps: f32,
        ) -> Result<UniquePtr<MlxArray>>;
        unsafe fn builtin_layer_norm(
            x: &MlxArray,
            weight: *const MlxArray,
            bias: *const MlxArray,
            eps: f32,
        ) -> Result<UniquePtr<MlxArray>>;
        /// `bias` and `residual` may be null.
        unsafe fn linear(
            x: &MlxArray,
            w: &MlxArray,
            bias: *const MlxArray,
            activation: ActivationKind,
            residual: *const MlxArray,
        ) -> Result<UniquePtr<MlxArray>>;
        /// Returns null if no kernel computes the product.
        fn gated_linear(inputs: &CxxVector<MlxArray>, eps: f32) -> Result<UniquePtr<MlxArray>>;
        fn set_row_order(order: u8) -> u8;
        fn matmul(a: &MlxArray, b: &MlxArray, transposed: bool) -> Result<UniquePtr<MlxArray>>;
        fn product(a: &MlxArray, b: &MlxArray) -> Result<UniquePtr<MlxArray>>;
        fn logsumexp(x: &MlxArray, keepdims: bool) -> Result<UniquePtr<MlxArray>>;
        fn log_softmax(x: &MlxArray) -> Result<UniquePtr<MlxArray>>;
        unsafe fn lora_linear(
            x: &MlxArray,
            base: &CxxVector<MlxArray>,
            layout: *const QuantizedLayout,
            a: &MlxArray,
            b: &MlxArray,
            scale: f32,
        ) -> Result<UniquePtr<MlxArray>>;
        unsafe fn masked_softmax(
            x: &MlxArray,
            scale: f32,
            mask: *const MlxArray,
            causal: bool,
            sliding: bool,
            window: i32,
        ) -> Result<UniquePtr<MlxArray>>;
        fn quantize(
            x: &MlxArray,
            group_size: i32,
            bits: i32,
        ) -> Result<UniquePtr<CxxVector<MlxArray>>>;
        fn dequantize(
            packed: &MlxArray,
            scales: &MlxArray,
            biases: &MlxArray,
            group_size: i32,
            bits: i32,
        ) -> Result<UniquePtr<MlxArray>>;
        fn dequantize_rows(
            packed: &MlxArray,
            scales: &MlxArray,
            biases: &MlxArray,
            ids: &MlxArray,
            group_size: i32,
            bits: i32,
        ) -> Result<UniquePtr<MlxArray>>;
        fn check_quantized(weight: &CxxVector<MlxArray>, layout: &QuantizedLayout) -> Result<()>;
        unsafe fn quantized_matmul(
            x: &MlxArray,
            weights: &CxxVector<MlxArray>,
            layout: &QuantizedLayout,
            steps: &QuantizedSteps,
            norm: *const MlxArray,
            bias: *const MlxArray,
            residual: *const MlxArray,
        ) -> Result<UniquePtr<MlxArray>>;
        fn pack_matrix(
            w: &MlxArray,
            layout: &QuantizedLayout,
        ) -> Result<UniquePtr<CxxVector<MlxArray>>>;
        fn unpack_matrix(
            weight: &CxxVector<MlxArray>,
            layout: &QuantizedLayout,
            dtype: Dtype,
        ) -> Result<UniquePtr<MlxArray>>;
        #[namespace = "mlx_primitives"]
        type QuantizedMode;
        #[namespace = "mlx_primitives"]
        type ReductionKind;
        fn reduction(
            x: &MlxArray,
            kind: ReductionKind,
            all: bool,
            keepdims: bool,
        ) -> Result<UniquePtr<MlxArray>>;
        unsafe fn rms_norm_residual(
            x: &MlxArray,
            residual: &MlxArray,
            weight: *const MlxArray,
            eps: f32,
        ) -> Result<UniquePtr<CxxVector<MlxArray>>>;
        unsafe fn layer_norm_residual(
            x: &MlxArray,
            residual: &MlxArray,
            weight: *const MlxArray,
            bias: *const MlxArray,
            eps: f32,
        ) -> Result<UniquePtr<CxxVector<MlxArray>>>;
        unsafe fn rms_norm(
            x: &MlxArray,
            weight: *const MlxArray,
            eps: f32,
        ) -> Result<UniquePtr<MlxArray>>;
        unsafe fn builtin_rms_norm(
            x: &MlxArray,
            weight: *const MlxArray,
            eps: f32,
        ) -> Result<UniquePtr<MlxArray>>;
        unsafe fn rope(
            x: &MlxArray,
            dims: i32,
            traditional: bool,
            base: *const f32,
            scale: f32,
            offset: &MlxArray,
            freqs: *const MlxArray,
        ) -> Result<UniquePtr<MlxArray>>;
        unsafe fn builtin_rope(
            x: &MlxArray,
            dims: i32,
            traditional: bool,
            base: *const f32,
            scale: f32,
            offset: &MlxArray,
            freqs: *const MlxArray,
        ) -> Result<UniquePtr<MlxArray>>;
        unsafe fn rope_append(
            state: &MlxArray,
            qkv: &MlxArray,
            layout: &AppendLayout,
            rotation: &AppendRotation,
            freqs: *const MlxArray,
            offset: &MlxArray,
            slots: *const MlxArray,
        ) -> Result<UniquePtr<MlxArray>>;
        /// Returns a list of the queries, the keys and the values.
        unsafe fn rope_heads(
            qkv: &MlxArray,
            layout: &AppendLayout,
            rotation: &AppendRotation,
            freqs: *const MlxArray,
            offset: &MlxArray,
        ) -> Result<UniquePtr<CxxVector<MlxArray>>>;
        /// Returns a list of two arrays: the key/value cache with the new rows, and the attention's
        /// result.
        unsafe fn rope_append_attention(
            state: &MlxArray,
            qkv: &MlxArray,
            layout: &AppendLayout,
            rotation: &AppendRotation,
            freqs: *const MlxArray,
            offset: &MlxArray,
            slots: *const MlxArray,
            len: i32,
            rules: &AttentionRules,
            mask: *const MlxArray,
            sinks: *const MlxArray,
        ) -> Result<UniquePtr<CxxVector<MlxArray>>>;
        fn softmax(x: &MlxArray) -> Result<UniquePtr<MlxArray>>;
        fn builtin_softmax(x: &MlxArray, precise: bool) -> Result<UniquePtr<MlxArray>>;
    }
}

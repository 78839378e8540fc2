//! Commands of `mlx-primitives` other than `generate` and `chat`: their text, their JSON, and their
//! errors.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Stdio;

use mlx_primitives::device::{Device, default_device};
use serde_json::{Value, json};

use crate::command::{command, run, stderr, stdout, text_of};
use crate::support::models::{DEMO, conversions as fixture};
use crate::support::simulated;

const ADAPTERS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/adapters");

fn object(arguments: &[&str]) -> Value {
    let output = run(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
    serde_json::from_str(&stdout(&output)).unwrap()
}

#[test(simulated = once)]
fn every_command_explains_itself_with_examples() {
    for name in ["perplexity", "bench", "quantize", "lora", "fuse", "info", "verify", "tune"] {
        let output = run(&[name, "--help"]);
        assert_eq!(output.status.code(), Some(0), "{name}");
        let help = stdout(&output);
        assert!(help.contains("Examples:\n"), "{name}: {help}");
        let example = format!("\n  mlx-primitives {name} --");
        assert!(help.contains(&example), "{name}: {help}");
        assert!(stdout(&run(&["--help"])).contains(&format!("\n  {name} ")), "{name} is listed");
    }
}

#[test(simulated = once)]
fn perplexity_of_a_file_and_of_stdin() {
    let fixture = fixture();
    let (story, theirs) = (fixture["story"].as_str().unwrap(), &fixture["perplexity"]["float32"]);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("story.txt");
    fs::write(&file, story).unwrap();
    let object = object(&["perplexity", "--file", text_of(&file), "--json"]);
    assert_eq!(object["tokens"], theirs["tokens"]);
    let (ours, theirs) =
        (object["mean_nll"].as_f64().unwrap(), theirs["mean_nll"].as_f64().unwrap());
    assert!((ours - theirs).abs() < 1e-5);
    assert!((object["perplexity"].as_f64().unwrap() - theirs.exp()).abs() < 1e-2);
    if simulated() {
        return;
    }

    let mut child =
        command(&["perplexity", "--model", DEMO, "-f", "-", "--adapter-path", ADAPTERS])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
    child.stdin.take().unwrap().write_all(story.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let adapted = fixture["adapted"]["perplexity"]["mean_nll"].as_f64().unwrap();
    assert!(stdout(&output).contains(&format!("mean NLL    {adapted:.4} nats\n")), "{output:?}");

    fs::write(&file, story.repeat(4)).unwrap();
    let output = run(&["perplexity", "--file", text_of(&file)]);
    assert!(stderr(&output).contains("620 tokens, the model was made for 256 positions"));
    assert!(stdout(&output).contains("tokens      619\n"), "{output:?}");
}

/// Rounding the activations of a prompt to eight bits changes the score by less than 1 %. Kernels
/// that use AMX do not round bfloat16 activations, because with exact bfloat16 numbers they are as
/// fast as with rounded ones.
#[test(simulated = once)]
fn activations_of_eight_bits_score_almost_as_well() {
    let fixture = fixture();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("story.txt");
    fs::write(&file, fixture["story"].as_str().unwrap()).unwrap();
    for dtype in ["float32", "bfloat16"] {
        let packed = directory.path().join(dtype);
        let into = ["-o", text_of(&packed), "--bits", "4", "--dtype", dtype];
        let output = run(&[&["quantize", "--model", DEMO], &into[..]].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        let score = |activations: &str| {
            let mut arguments =
                vec!["perplexity", "--model", text_of(&packed), "-f", text_of(&file)];
            arguments.extend(["--json", "--activations", activations]);
            object(&arguments)["mean_nll"].as_f64().unwrap()
        };
        let exact = score("exact");
        let on_cpu = default_device().unwrap() == Device::Cpu;
        if !on_cpu || !mlx_primitives::device::cpu_multiplies_bytes() {
            let output = run(&["perplexity", "-f", text_of(&file), "--activations", "int8"]);
            assert_eq!(output.status.code(), Some(1));
            assert!(stderr(&output).contains("--activations int8 needs CPU kernels"));
            continue;
        }
        let rounded = score("int8");
        assert!((rounded - exact).abs() < 0.01 * exact, "{dtype}: {exact} {rounded}");
        let stays = dtype == "bfloat16" && mlx_primitives::device::cpu_kernels() == "amx";
        let rounds = !stays && !simulated();
        assert_eq!(rounded != exact, rounds, "{dtype}: {exact} {rounded}");
    }
}

/// The option is refused if it changes nothing: for plain weights and 8-bit floats, and on some
/// processors for integers of eight bits.
#[test(simulated = once)]
fn activations_of_exact_products_are_not_rounded_in_silence() {
    let directory = tempfile::tempdir().unwrap();
    let packed = ["mxfp8", "8"].map(|name| directory.path().join(name));
    let options = [["--mode", "mxfp8"], ["--bits", "8"]];
    for (packed, options) in packed.iter().zip(options) {
        let into = ["quantize", "--model", DEMO, "-o", text_of(packed)];
        let output = run(&[&into[..], &options[..]].concat());
        assert!(output.status.success(), "{}", stderr(&output));
    }
    let on_cpu = default_device().unwrap() == Device::Cpu;
    let bytes = on_cpu && mlx_primitives::device::cpu_multiplies_bytes();
    let exact = matches!(mlx_primitives::device::cpu_kernels(), "avx512" | "avx2");
    let needs = if bytes { "would round no activations" } else { "needs CPU kernels" };
    for (model, refused) in
        [(DEMO, true), (text_of(&packed[0]), true), (text_of(&packed[1]), !bytes || exact)]
    {
        let output =
            run(&["generate", "Once", "--model", model, "-m", "2", "--activations", "int8"]);
        assert_eq!(output.status.code(), Some(i32::from(refused)), "{model}: {output:?}");
        assert_eq!(stderr(&output).contains(needs), refused, "{model}: {}", stderr(&output));
    }
}

#[test(simulated = once)]
fn bench_measures_models_and_configurations() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("config.json");
    let config = json!({
        "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128,
        "num_attention_heads": 2, "num_key_value_heads": 1, "rms_norm_eps": 1e-5, "vocab_size": 64,
    });
    fs::write(&file, config.to_string()).unwrap();
    let tiny = ["-p", "6", "-g", "4", "-n", "2", "--json"];
    let base = ["bench", "--config", text_of(&file), "--bits", "4", "--group-size", "32"];
    let with = |more: &[&str]| object(&[&base, more, &tiny[..]].concat());
    let figures = with(&[]);
    for key in ["prompt_tps", "generation_tps", "peak_memory_bytes"] {
        assert!(figures[key].as_f64().unwrap() > 0.0, "{key}: {figures}");
    }
    // The model has about 78,000 weights. A packed weight takes 4 bits, and each group of 32 has a
    // 16-bit scale and a 16-bit bias. The norms are not packed.
    let parameters = 64 * 64 + 2 * (2 * 64 * 64 + 2 * 32 * 64 + 3 * 128 * 64 + 2 * 64) + 64;
    let norms = 5 * 64;
    assert_eq!(figures["parameters"], parameters);
    assert_eq!(figures["weight_bytes"], (parameters - norms) / 2 * 5 / 4 + norms * 2);
    assert!(figures["peak_memory_bytes"].as_u64() > figures["weight_bytes"].as_u64());
    assert_eq!((&figures["prompt_tokens"], &figures["num_trials"]), (&json!(6), &json!(2)));
    if simulated() {
        return;
    }

    assert_eq!(with(&["--mode", "mxfp4", "--dtype", "float16"])["num_trials"], 2);
    assert_eq!(
        with(&["--context", "300", "--kv-bits", "8", "--kv-group-size", "32"])["context"],
        300
    );
    let decoding = object(&["bench", "-p", "0", "-g", "3", "-n", "1", "-c", "20", "--json"]);
    assert_eq!(decoding["prompt_tps"], Value::Null);
    assert!(decoding["generation_tps"].as_f64().unwrap() > 0.0);
    let prompt = ["bench", "--model", DEMO, "-p", "9", "-g", "0", "-n", "1", "--bits", "4"];
    let output = run(&[&prompt[..], &["--progress"]].concat());
    let (table, trials) = (stdout(&output), stderr(&output));
    assert!(
        trials.contains("trial 0: prompt ") && trials.contains("\ntrial 1: prompt "),
        "{trials}"
    );
    assert!(table.contains("prompt") && table.contains("9 tokens") && table.contains(" ± "));
    assert!(!table.contains("generation") && table.contains("0.80 M parameters"), "{table}");
}

#[test(simulated = once)]
fn quantized_and_fused_checkpoints_run() {
    let directory = tempfile::tempdir().unwrap();
    let packed = directory.path().join("packed");
    let arguments = ["quantize", "--model", DEMO, "--output", text_of(&packed), "--bits", "8"];
    let figures = object(&[&arguments[..], &["--json"]].concat());
    assert_eq!(figures["unquantized"].as_array().unwrap().len(), 4, "groups of 64: {figures}");
    assert_eq!(figures["unquantized"][0], "model.layers.0.mlp.down_proj");
    let size = fs::metadata(packed.join("model.safetensors")).unwrap().len();
    let weights = figures["weight_bytes"].as_u64().unwrap();
    assert!((weights..weights + (1 << 15)).contains(&size));
    assert!(figures["bits_per_weight"].as_f64().unwrap() < 16.0);
    // The command refuses to overwrite an existing file.
    let output = run(&arguments);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("exists"), "{}", stderr(&output));

    let fused = directory.path().join("fused");
    let arguments = [
        "fuse",
        "--model",
        text_of(&packed),
        "--adapter-path",
        ADAPTERS,
        "--save-path",
        text_of(&fused),
    ];
    let output = run(&arguments);
    assert!(stdout(&output).contains("6 projections fused"), "{output:?}");
    let info = object(&["info", "--model", text_of(&fused), "--json"]);
    assert_eq!(info["quantization"], json!({"group_size": 64, "bits": 8, "mode": "affine"}));
    assert_eq!(info["weight_bytes"], weights);
    let arguments = ["generate", "Once upon a time", "--model", text_of(&fused), "-m", "2"];
    assert!(run(&arguments).status.success());
}

#[test(simulated = once)]
fn info_shows_the_conversions_of_gguf_types() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/gguf/q4_k_m.gguf");
    let text = stdout(&run(&["info", "--model", file]));
    assert!(text.contains("4 bits in groups of 32, the same numbers\n"), "{text}");
    assert!(text.contains("6 bits in groups of 16, the same numbers\n"), "{text}");
    let types = object(&["info", "--model", file, "--json"])["gguf_types"].clone();
    assert_eq!(types[1]["name"], "Q4_K");
    assert_eq!((&types[1]["bits"], &types[1]["rounding"]), (&json!(4), &json!(null)));
    assert_eq!(object(&["info", "--model", DEMO, "--json"])["gguf_types"], json!([]));
    let converted = ["info", "--model", file, "--dtype", "bfloat16"];
    assert!(stdout(&run(&converted)).contains("not counted: GPUs unpack K-quants"));
    let object = object(&[&converted[..], &["--json"]].concat());
    assert_eq!(
        (&object["dtype"], &object["dispatches_per_token"]),
        (&json!("bfloat16"), &json!(null))
    );
}

#[test(simulated = once)]
fn info_shows_the_memory_of_a_model() {
    let object = object(&["info", "--model", DEMO, "--context", "1,300", "--json"]);
    assert_eq!((&object["model_type"], &object["parameters"]), (&json!("llama"), &json!(803_968)));
    assert_eq!(object["weight_bytes"], 4 * 803_968);
    assert_eq!(object["memory"][0]["context"], 1);
    // Each of the four layers caches 512 positions of two key heads and two value heads, with 32
    // features per head. It also stores the four query heads of one position.
    let cache = 4 * 4 * 32 * (2 * 2 * 512 + 4);
    assert_eq!(object["memory"][1]["cache_bytes"].as_u64().unwrap() / cache, 1);
    assert_eq!(
        object["memory"][1]["total_bytes"],
        4 * 803_968 + object["memory"][1]["cache_bytes"].as_u64().unwrap()
    );
    let dispatches = object["dispatches_per_token"].as_u64().unwrap();
    assert!((30..60).contains(&dispatches), "{dispatches}");
    assert!(object["builtin_dispatches_per_token"].as_u64().unwrap() > dispatches);

    let output = run(&["info", "--model", DEMO, "--bits", "4", "--group-size", "32"]);
    let text = stdout(&output);
    for part in ["llama, 4 layers", "0.80 M", "4 bits, affine, groups of 32", "context"] {
        assert!(text.contains(part), "{part:?} not in {text}");
    }
    let graph = stdout(&run(&["info", "--graph", "--bits", "4", "--group-size", "32"]));
    assert!(!graph.contains("Load") && !graph.contains("Quantize "), "{graph}");
}

/// With packed weights, each layer launches a kernel for each of: norm and projections to queries,
/// keys and values; rotation and cache; attention (two if its keys are split); output projection;
/// norm, gate and up projections; down projection.
#[test(simulated = once)]
fn a_decoded_token_takes_few_dispatches() {
    let directory = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors", "tokenizer.json"] {
        fs::copy(Path::new(DEMO).join(file), directory.path().join(file)).unwrap();
    }
    let config = fs::read_to_string(Path::new(DEMO).join("config.json")).unwrap();
    let longer =
        config.replace("\"max_position_embeddings\": 256", "\"max_position_embeddings\": 8192");
    fs::write(directory.path().join("config.json"), longer).unwrap();
    for (context, ours_in_layer, theirs_in_layer) in [(1, 6, 17), (100, 6, 17), (4096, 7, 18)] {
        let (model, context) = (text_of(directory.path()), context.to_string());
        let packed = ["--bits", "4", "--group-size", "32", "--context", &context];
        let cost =
            object(&[&["info", "--graph", "--json", "--model", model], &packed[..]].concat());
        let layers = cost["layers"].as_u64().unwrap();
        let number = |side: &str, key: &str| cost[side][key].as_u64().unwrap();
        let [products, attentions] = ["QuantizedMatmul", "RopeAppendAttention"]
            .map(|name| cost["ours"]["nodes"][name]["dispatches"].as_u64().unwrap());
        assert_eq!(products, 4 * layers + 1, "{cost:#}");
        assert_eq!(products - 1 + attentions, ours_in_layer * layers, "{cost:#}");
        // Looking up the embedding's row is outside the layers. With MLX's ops, the last norm and
        // the output projection are two more dispatches outside the layers. MLX also splits long
        // caches.
        let embedding = number("ours", "dispatches") - products - attentions;
        let theirs = number("builtins", "dispatches") - embedding - 2;
        assert_eq!(theirs, theirs_in_layer * layers, "{cost:#}");
        let bytes = ["ours", "builtins"].map(|side| number(side, "device_bytes"));
        assert!(bytes[0] < bytes[1], "{bytes:?}");
    }
}

#[test(simulated = once)]
fn failures_name_the_file_and_bad_usage_exits_with_2() {
    let directory = tempfile::tempdir().unwrap();
    let (empty, broken) = (directory.path().join("empty.txt"), directory.path().join("c.json"));
    fs::write(&empty, "").unwrap();
    fs::write(&broken, r#"{"model_type": "llama"}"#).unwrap();
    let nowhere = directory.path().join("no/such");
    for (arguments, part) in [
        (&["perplexity", "--file", "no/such/file"][..], "no/such/file"),
        (&["perplexity", "--file", text_of(&empty)], "empty.txt: [score] expected a text of two"),
        (
            &["perplexity", "-f", text_of(&empty), "--model", "no/such"],
            "no/such: there is no such file or folder here",
        ),
        (&["perplexity", "-f", text_of(&broken), "--adapter-path", "no"], "no/adapter_config.json"),
        (&["bench", "--config", text_of(&broken)], "c.json: [config] expected"),
        (&["bench", "--config", "no/such.json"], "no/such.json"),
        (&["bench", "-p", "0", "-g", "0"], "-p or -g"),
        (&["bench", "-p", "4", "-g", "4", "--kv-bits", "8"], "--kv-group-size that divides the 32"),
        (
            &["quantize", "--model", "no/such", "--output", text_of(&nowhere)],
            "no/such: there is no such file or folder here",
        ),
        (
            &["fuse", "--model", DEMO, "--adapter-path", DEMO, "--save-path", text_of(&nowhere)],
            "adapter_config.json",
        ),
        (&["info", "--model", "no/such"], "no/such: there is no such file or folder here"),
        (&["info", "--graph", "--context", "1,2"], "one --context"),
    ] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {}", stderr(&output));
        assert!(output.stdout.is_empty(), "{arguments:?}");
        let error = stderr(&output);
        assert!(error.starts_with("error: ") && error.contains(part), "{arguments:?}: {error}");
    }
    assert!(!nowhere.exists());
    for arguments in [
        &["perplexity"][..],
        &["bench", "--config", "a", "--model", "b"],
        &["bench", "-n", "0"],
        &["bench", "--kv-bits", "7"],
        &["bench", "--dtype", "int8"],
        &["quantize", "--model", DEMO],
        &["quantize", "--output", "x"],
        &["fuse"],
        &["info", "--bits", "4"],
        &["info", "--context", "7"],
        &["info", "--dtype", "float16"],
        &["info", "--kv-group-size", "32"],
    ] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", stderr(&output));
    }
}

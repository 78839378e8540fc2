"""Tests the scripts of this folder without the contestants: `python3 -m unittest` in this
folder."""

import json
import struct
import sys
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from unittest import mock

import alternate
import build
import chart
import contestants
import gguf
import load
import measure
import report
import run
import scaling


def figures(speeds, tokens=64, context=128):
    samples = [{"round": i, "tokens_per_second": speed} for i, speed in enumerate(speeds)]
    return {
        "tokens": tokens,
        "context": context,
        "samples": samples,
        "median": report.median(speeds),
        "quartiles": list(report.quartiles(speeds)),
    }


def line(key, rival=None, not_run=None, **tests):
    return {
        "key": key,
        "who": f"who <{key}>",
        "weights": "4-bit & more",
        "rival": rival,
        "bits_a_weight": 4.5,
        "bytes_a_token": 500_000_000,
        "not_run": not_run,
        "tests": {name.replace("_", "-"): value for name, value in tests.items()},
    }


def invented():
    """Invented results."""
    return {
        "machine": {"cpu": "none", "cores": 2, "simd": ["avx2"], "memory_gb": 1, "system": "none"},
        "date": "2000-01-01",
        "threads": 2,
        "rounds": 3,
        "quick": False,
        "load_before": 0.1,
        "versions": {"mlx-primitives": "0", "rustc": "rustc 1", "c++": None},
        "shape": {
            "config": {
                "num_hidden_layers": 1,
                "hidden_size": 2,
                "intermediate_size": 3,
                "num_attention_heads": 4,
                "vocab_size": 5,
            },
            "parameters": 10**9,
        },
        "bandwidth": {"best_gb_s": 50.0, "best_form": "a form", "samples": {}},
        "tests": [
            {"key": "decode", "title": "decode"},
            {"key": "prompt-128", "title": "prompt of 128"},
            {"key": "decode-4096", "title": "decode at 4096"},
        ],
        "contestants": [
            line(
                "ours",
                decode=figures([40.0, 60.0, 50.0]),
                prompt_128=figures([150.0], 128, 0),
                decode_4096=figures([36.0, 54.0, 45.0], context=4096),
            ),
            line("fast", "ours", decode=figures([20.0, 30.0, 25.0])),
            line("slow", "ours", decode=figures([0.137], tokens=4)),
            line("absent", "ours", not_run="no source; give --absent"),
        ],
    }


class Report(unittest.TestCase):
    def test_quantiles(self):
        self.assertEqual(report.median([3, 1, 2, 10]), 2.5)
        self.assertEqual(report.quartiles([0, 1, 2, 3, 4]), (1, 3))
        self.assertEqual(report.median([7]), 7)

    def test_ratios_are_of_the_same_round(self):
        ours, theirs = figures([40.0, 60.0, 50.0]), figures([20.0, 30.0])
        self.assertEqual(report.ratio(ours, theirs), 2.0)
        self.assertIsNone(report.ratio(ours, None))
        late = figures([1.0])
        late["samples"][0]["round"] = 9
        self.assertIsNone(report.ratio(ours, late))

    def test_table(self):
        rows = [row.strip("| ").split(" | ") for row in report.table(invented()).splitlines()]
        self.assertEqual(len(rows), 2 + 4)
        ours, fast, slow, absent = rows[2:]
        self.assertEqual(ours[:4], ["**who <ours>**", "4-bit & more", "50.0 ± 5.00", ""])
        self.assertEqual(fast[2:4], ["25.0 ± 2.50", "2.00×"])
        self.assertEqual(slow[2:4], ["0.137", "292×"])
        self.assertEqual(absent[2], "not run")
        columns = {row.count("|") for row in report.table(invented()).splitlines()}
        self.assertEqual(len(columns), 1)

    def test_a_second_line_of_ours_is_set_against_a_peer(self):
        results = invented()
        rounded = line("rounded", "fast", decode=figures([40.0, 60.0]))
        results["contestants"].append({**rounded, "own": True})
        row = report.table(results).splitlines()[-1].strip("| ").split(" | ")
        self.assertEqual(row[0], "**who <rounded>**")
        self.assertEqual(row[2:4], ["50.0 ± 5.00", "2.00× who <fast>"])
        drawn = chart.svg(results)
        self.assertIn("(2.00× who &lt;fast&gt;)", drawn)
        self.assertEqual(drawn.count('class="ours"'), 3 + 1)

    def test_notes_say_what_was_cut_and_what_was_not_run(self):
        text = report.about(invented())
        self.assertIn("4 tokens instead of 64, 1 round", text)
        self.assertIn("not run: no source; give --absent", text)
        self.assertIn("50.0 GB/s at best (a form)", text)
        self.assertIn("Versions: mlx-primitives 0; rustc 1.", text)
        self.assertNotIn("None", text)

    def test_a_busy_machine_is_told(self):
        self.assertNotIn("relied on", report.about(invented()))
        self.assertIn("2.0 cores busy", report.about({**invented(), "load_before": 2.0}))

    def test_bandwidth_may_be_missing(self):
        results = invented()
        results["bandwidth"] = {"best_gb_s": None, "best_form": None, "samples": {}}
        self.assertNotIn("None", report.about(results) + chart.svg(results))

    def test_a_page_is_filled_between_its_markers(self):
        page = f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n"
        filled = report.fill(page, r"new \1" + "\n")
        self.assertEqual(filled, f"before\n{report.BEGIN}\nnew \\1\n{report.END}\nafter\n")
        self.assertEqual(report.fill(filled, "old\n"), page)
        with self.assertRaises(ValueError):
            report.fill("no markers", "new")

    def test_chart_is_well_formed(self):
        drawn = ElementTree.fromstring(chart.svg(invented()))
        space = "{http://www.w3.org/2000/svg}"
        bars = [box.get("class") for box in drawn.iter(f"{space}rect")]
        self.assertEqual(bars.count("ours"), 3)
        self.assertEqual(bars.count("peer"), 2)
        words = "".join(drawn.itertext())
        for expected in ["who <fast>", "ours 2.00×", "prefers-color-scheme"]:
            self.assertIn(expected, words)
        width = float(drawn.get("width"))
        for box in drawn.iter(f"{space}rect"):
            self.assertLessEqual(float(box.get("x")) + float(box.get("width")), width)


class Scaling(unittest.TestCase):
    def runs(self, cpu="none"):
        """In these results, twice the threads give twice the speed."""
        runs = []
        for threads in [1, 2, 4]:
            results = invented()
            results["threads"], results["machine"]["cpu"] = threads, cpu
            results["contestants"][0]["tests"]["decode"] = figures([10.0 * threads])
            results["contestants"][1]["tests"]["decode"] = figures([5.0 * threads])
            runs.append(results)
        return runs

    def test_numbers_of_threads(self):
        self.assertEqual(run.thread_counts("8,1,2,2"), [1, 2, 8])
        with self.assertRaises(run.argparse.ArgumentTypeError):
            run.thread_counts("0,2")

    def test_table(self):
        rows = [row.strip("| ").split(" | ") for row in scaling.table(self.runs()).splitlines()]
        self.assertEqual(rows[0], ["test", "", "weights", "1", "2", "4"])
        self.assertEqual(rows[2][3:], ["10.0", "20.0", "40.0"])
        self.assertEqual(rows[3][3:], ["5.00 (2.00×)", "10.0 (2.00×)", "20.0 (2.00×)"])

    def test_curves_are_well_formed(self):
        drawn = ElementTree.fromstring(scaling.svg([self.runs(), self.runs("other")]))
        space = "{http://www.w3.org/2000/svg}"
        dots = [dot for dot in drawn.iter(f"{space}circle") if dot.get("class") == "ours"]
        # The data has three tests with three numbers of threads on two machines.
        self.assertEqual(len(dots), 3 * 3 * 2)
        self.assertIn("other, 2 cores, 2000-01-01", "".join(drawn.itertext()))
        width, height = float(drawn.get("width")), float(drawn.get("height"))
        for dot in drawn.iter(f"{space}circle"):
            self.assertTrue(0 <= float(dot.get("cx")) <= width)
            self.assertTrue(0 <= float(dot.get("cy")) <= height)

    def test_a_machine_is_kept_once(self):
        first, other = self.runs(), self.runs("other")
        again = self.runs()
        self.assertEqual(scaling.kept([first, other], again), [again, other])


class Contestants(unittest.TestCase):
    def test_every_peer_is_set_against_a_line_of_ours(self):
        lines = contestants.everyone()
        ours = {one.key for one in lines if isinstance(one, contestants.Ours)}
        self.assertEqual(len({one.key for one in lines}), len(lines))
        for one in lines:
            if one.key not in ours:
                self.assertIn(one.rival, ours, one.key)
            elif one.rival:
                self.assertIn(one.rival, {one.key for one in lines} - ours)

    def test_what_llama_bench_prints_is_read(self):
        (peer,) = [one for one in contestants.everyone() if one.key == "llama.cpp-q4_0"]
        output = json.dumps([{"n_prompt": 0, "n_gen": 8, "avg_ts": 2.0, "samples_ts": [1.0, 3.0]}])
        self.assertEqual(peer.read(output), [1.0, 3.0])

    def test_what_ours_prints_is_read(self):
        ours = contestants.everyone()[0]
        self.assertEqual(ours.read('{"prompt_tps": null, "generation_tps": 2.5}'), [2.5])

    def test_a_complaint_is_found_before_its_backtrace(self):
        text = "loading\nx.c:1: GGML_ASSERT(a == b) failed\n#1 main ()\n"
        self.assertEqual(measure.complaint(text), "x.c:1: GGML_ASSERT(a == b) failed")
        self.assertEqual(measure.complaint("one\ntwo\n"), "two")
        self.assertEqual(measure.complaint(""), "no message")

    def test_a_failure_shows_no_path_of_the_machine(self):
        self.assertIsNone(measure.without_paths(None))
        shown = measure.without_paths(f"see {measure.build.ROOT}/target/peers/x.log")
        self.assertEqual(shown, "see target/peers/x.log")


class Alternate(unittest.TestCase):
    def turn(self, *times):
        return [(at, ("0",)) for at in times]

    def test_a_trial_counts_if_it_began_and_ended_in_one_turn(self):
        turns = [self.turn(1.0, 2.0, 4.0), self.turn(104.0), self.turn()]
        self.assertEqual(alternate.speeds(turns[0], 4), [4.0, 2.0])
        self.assertEqual(alternate.speed(turns, 4), 8 / 3)
        self.assertIsNone(alternate.speed(turns[1:], 4))
        printed = [(0, ("1", "9.0")), (1, ("2", "5.0"))]
        self.assertEqual(alternate.speeds(printed, 4), [5.0], "a speed that is printed counts")

    def test_ratios_are_of_the_same_round(self):
        ours, theirs = [self.turn(0, 1), self.turn(9)], [self.turn(2, 4), self.turn(5, 6)]
        self.assertEqual(alternate.ratios(ours, theirs, 4), [2.0])

    def test_the_best_way_to_read_has_the_largest_median(self):
        lines = [("9.0", "a"), ("5.0", "a"), ("4.0", "b"), ("1.0", "a"), ("4.5", "b")]
        turn = [(at, groups) for at, groups in enumerate(lines)]
        self.assertEqual(alternate.bandwidth([turn]), (4.25, "b"))
        self.assertEqual(alternate.bandwidth([]), (None, None))

    def test_a_row(self):
        turns = [self.turn(0, 1), self.turn(0, 1)]
        memory = [[(0, ("1", "a")), (1, ("10.0", "a"))]]
        made = alternate.row(2, turns, [self.turn(0, 2)], memory, 4, 2.0)
        self.assertEqual(made, "| 2 | 4.00 | 2.00 | 2.00 | 2.00 | 10.0 (a) | 80 % | 40 % |")
        with self.assertRaises(build.Unavailable):
            alternate.row(2, [[]], turns, memory, 4, 2.0)

    def test_a_program_takes_turns(self):
        script = "import time\nfor i in range(10**9): print('trial', i, flush=True); time.sleep(0.01)"
        command = [run.sys.executable, "-c", script]
        player = alternate.Player(command, 1, r"^trial (\d+)", 2)
        try:
            while alternate.speed(player.turns, 4) is None and len(player.turns) < 100:
                player.turn(0.3)
            self.assertGreater(alternate.speed(player.turns, 4), 0)
            counts = [len(player.lines)]
            while len(counts) < 30 and counts[-3:] != 3 * counts[-1:]:
                alternate.time.sleep(0.3)  # a busy machine may read the last lines late
                counts.append(len(player.lines))
            self.assertEqual(counts[-3:], 3 * counts[-1:], "a stopped program prints nothing")
        finally:
            player.end()

    def test_a_program_that_ends_is_told(self):
        script = "import sys; print('loading'); sys.exit('error: no such model')"
        with self.assertRaisesRegex(build.Unavailable, "ended: error: no such model"):
            alternate.Player([run.sys.executable, "-c", script], 1, "x", 1)

    def test_a_program_that_prints_too_little_is_ended(self):
        started = []
        popen = alternate.subprocess.Popen

        def keep(*arguments, **options):
            started.append(popen(*arguments, **options))
            return started[-1]

        script = "import time; time.sleep(600)"
        with mock.patch.object(alternate, "LOADING_SECONDS", 0.2):
            with mock.patch.object(alternate.subprocess, "Popen", keep):
                with self.assertRaisesRegex(build.Unavailable, "printed too little in 0.2 s"):
                    alternate.Player([run.sys.executable, "-c", script], 1, "x", 1)
        self.assertEqual(started[0].returncode, -alternate.signal.SIGKILL)


class Load(unittest.TestCase):
    def test_a_process_is_timed_with_its_memory(self):
        seconds, megabytes = load.process([sys.executable, "-c", "len(bytearray(80_000_000))"], 1)
        self.assertTrue(0 < seconds < 60 and 80 < megabytes < 2000, (seconds, megabytes))

    def test_a_process_that_fails_is_told(self):
        command = [sys.executable, "-c", "raise SystemExit('error: no such model')"]
        with self.assertRaisesRegex(build.Unavailable, "error: no such model"):
            load.process(command, 1)

    def test_a_row_has_the_medians_of_all_rounds_after_the_first(self):
        with tempfile.NamedTemporaryFile() as file:
            file.write(bytes(2_000_000))
            file.flush()
            peer = mock.Mock(format="Q8_0", model=Path(file.name), binary="llama-bench")
            ours, theirs = [(9, 9), (2, 300), (4, 500), (3, 400)], [(9, 9), (2, 200)] + 2 * [(2, 200)]
            turns = [turn for pair in zip(ours, theirs) for turn in pair]
            with mock.patch("load.process", side_effect=turns):
                row = load.row(peer, "mlx-primitives", 2, 3)
        self.assertEqual(row, "| Q8_0, 2 MB | 3.00 | 2.00 | 1.50 | 400 | 200 | 2.00 |")


class Machine(unittest.TestCase):
    def test_a_processor_is_named_with_its_numbers(self):
        info = "cpu family\t: 25\nmodel\t\t: 17\nmodel name\t: AMD EPYC\nflags\t\t: fpu avx2\n"
        self.assertEqual(
            measure.linux_cpu(info + "\n" + info), ("AMD EPYC family 25, model 17", ["fpu", "avx2"])
        )

    def test_what_is_not_told_is_left_out(self):
        self.assertEqual(measure.linux_cpu("model name\t: Some CPU\n"), ("Some CPU", []))
        self.assertEqual(measure.linux_cpu("processor\t: 0\n"), (None, []))


class Gguf(unittest.TestCase):
    def test_the_shape_of_the_comparison(self):
        shape = gguf.Shape(Path(__file__).parent / "llama-1b.json")
        self.assertEqual(shape.parameters(), 1_104_218_112)
        self.assertEqual(shape.parameters() - shape.read_a_token(), 32000 * 2048 + 33 * 2048)

    def test_files_hold_what_their_headers_say(self):
        config = {
            "model_type": "llama",
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "intermediate_size": 96,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "rms_norm_eps": 1e-5,
            "vocab_size": 50,
            "tie_word_embeddings": False,
        }
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "config.json"
            path.write_text(json.dumps(config))
            shape = gguf.Shape(path)
            for format in ["F16", "Q4_0", "Q4_1", "Q8_0"]:
                file = Path(folder) / f"{format}.gguf"
                gguf.write(file, shape, format)
                self.check(file.read_bytes(), shape, format)

    def check(self, data, shape, format):
        magic, version, tensors, fields = struct.unpack_from("<4sIQQ", data)
        self.assertEqual((magic, version), (b"GGUF", 3))
        self.assertEqual(tensors, 1 + 7 * shape.layers + 1 + 2 * shape.layers + 1)
        self.assertEqual(fields, len(gguf.metadata(shape, format)))
        _, _, block, size = gguf.FORMATS[format]
        packed = (shape.read_a_token() + shape.vocabulary * shape.hidden) * size // block
        norms = 4 * shape.hidden * (2 * shape.layers + 1)
        rest = len(data) - packed - norms
        self.assertGreater(rest, 0)
        self.assertLess(rest, 100 * (tensors + fields))
        if format == "Q4_0":
            (scale,) = struct.unpack_from("<e", gguf.tile(format, shape.hidden))
            self.assertAlmostEqual(scale * 4.6, shape.hidden**-0.5, delta=0.001)


if __name__ == "__main__":
    unittest.main()

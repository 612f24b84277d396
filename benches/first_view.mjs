// Times `searchmill ui` from the command to the list of pipelines in Chromium: medians in milliseconds.
//
//   scripts/setup-browser
//   node benches/first_view.mjs target/release/searchmill FOLDER_WITH_A_STORE [REPETITIONS]
import { spawn } from "node:child_process";
import { once } from "node:events";
import { resolve } from "node:path";
import { fresh, report } from "./browser.mjs";

const [binary, cwd, times = "7"] = process.argv.slice(2);
const address = "127.0.0.1:8133";
const found = { listening: [], first_view: [] };
for (let time = 0; time < Number(times); time += 1) {
  const page = await fresh();
  const start = performance.now();
  const server = spawn(resolve(binary), ["ui", "--listen", address, "--no-open"], { cwd });
  const ended = once(server, "exit");
  // It names its address on stdout or stderr as soon as it listens; if it ends before, the port is taken.
  const said = await Promise.race([once(server.stdout, "data"), once(server.stderr, "data"), ended]);
  if (!String(said[0]).includes(address)) throw new Error(`no server: ${said[0]}`);
  found.listening.push(performance.now() - start);
  await page.goto(`http://${address}/`);
  await page.waitForFunction(() => document.querySelectorAll("table.list tbody tr").length > 0, null, { polling: "raf" });
  found.first_view.push(performance.now() - start);
  server.kill("SIGINT");
  await ended;
  await page.context().close();
}
await report(found);

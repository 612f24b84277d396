// Times `searchmill ui` from the command to the list of pipelines in Chromium: medians in milliseconds.
//
//   scripts/setup-browser
//   node benches/first_view.mjs target/release/searchmill FOLDER_WITH_A_STORE [REPETITIONS]
import { resolve } from "node:path";
import { fresh, report, serve } from "./browser.mjs";

const [binary, cwd, times = "7"] = process.argv.slice(2);
const address = "127.0.0.1:8133";
const found = { listening: [], first_view: [] };
for (let time = 0; time < Number(times); time += 1) {
  const page = await fresh();
  const start = performance.now();
  const end = await serve(resolve(binary), cwd, address);
  found.listening.push(performance.now() - start);
  await page.goto(`http://${address}/`);
  await page.waitForFunction(() => document.querySelectorAll("table.list tbody tr").length > 0, null, { polling: "raf" });
  found.first_view.push(performance.now() - start);
  await end();
  await page.context().close();
}
await report(found);

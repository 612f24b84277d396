// Times of `inspect view` in Chromium on logs that `export-trajectories` wrote: medians in milliseconds.
//
//   inspect log convert --to eval --output-dir logs LOG.json       (twice, with other names: with one log there is no list)
//   inspect view start --log-dir logs --port 7575
//   node benches/inspect_view.mjs http://127.0.0.1:7575 [REPETITIONS]
//
// logs: address to the list of logs. samples: click on a log to its samples. talk: click on a sample to its conversation.
import { fresh, report } from "./browser.mjs";

const [base, times = "5"] = process.argv.slice(2);
const found = { inspect_logs: [], inspect_samples: [], inspect_talk: [] };
const rows = 'a[role="row"]';

/** Clicks in the page on a row that is there; returns the time until so many rows or a conversation are shown. */
function clicked([selector, place, rowsAfter]) {
  return new Promise((done) => {
    const start = performance.now();
    document.querySelectorAll(selector)[place].click();
    const look = () => {
      const shown = rowsAfter ? document.querySelectorAll(selector).length >= rowsAfter : /assistant/i.test(document.body.innerText);
      if (shown) done(performance.now() - start);
      else requestAnimationFrame(look);
    };
    look();
  });
}

for (let time = 0; time < Number(times); time += 1) {
  const page = await fresh();
  const start = performance.now();
  await page.goto(base);
  await page.waitForFunction((selector) => document.querySelectorAll(selector).length > 1, rows, { polling: "raf" });
  found.inspect_logs.push(performance.now() - start);
  // It goes on loading after the first rows.
  await page.waitForTimeout(3500);
  found.inspect_samples.push(await page.evaluate(clicked, [rows, 0, 6]));
  await page.waitForTimeout(3500);
  await page.waitForFunction((selector) => document.querySelectorAll(selector).length > 5, rows);
  found.inspect_talk.push(await page.evaluate(clicked, [rows, 2, 0]));
  await page.context().close();
}
await report(found);

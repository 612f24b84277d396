// Times of the page of `searchmill ui` in Chromium, on a store that is there: medians in milliseconds.
//
//   scripts/setup-browser
//   node benches/page.mjs http://127.0.0.1:8111 RUN_OF_A_LARGE_TABLE NODE 'SQL' RUN_OF_ROLLOUTS NODE [REPETITIONS]
//
// first: address to the first rows. end: key `e` to the last row. filter: Enter in the filter to the count. talk: click on a
// row of rollouts to its conversation. home: address to the list of pipelines.
import { fresh, report } from "./browser.mjs";

const [base, run, node, sql, rollouts, talks, times = "7"] = process.argv.slice(2);
const found = { page_home: [], page_first: [], page_end: [], page_filter: [], page_list: [], page_talk: [] };
const page = await fresh();

/** Time until a condition holds in the page, looked at in every frame. */
async function until(name, act, condition, argument) {
  const start = performance.now();
  await act();
  await page.waitForFunction(condition, argument, { polling: "raf" });
  found[`page_${name}`].push(performance.now() - start);
}

const hasRows = () => document.querySelectorAll(".body .line a").length > 5;
for (let time = 0; time < Number(times); time += 1) {
  await until("home", () => page.goto(`${base}/`), () => document.querySelectorAll("table.list tbody tr").length > 0);
  await until("first", () => page.goto(`${base}/r/${run}/n/${node}`), hasRows);
  const last = await page.locator('[role="table"]').getAttribute("aria-rowcount");
  await page.locator(".rows").focus();
  await until("end", () => page.keyboard.press("e"), (row) => document.querySelector(`[aria-rowindex="${row}"] a`) !== null, last);
  const one = `${sql} AND ${time} = ${time}`;
  await page.locator("#where").fill(one);
  const all = Number(last) - 1;
  await until("filter", () => page.keyboard.press("Enter"), (count) => {
    const rows = document.querySelector('[role="table"]')?.getAttribute("aria-rowcount");
    return rows !== null && Number(rows) - 1 < count && document.querySelectorAll(".body .line a").length > 0;
  }, all);
  await until("list", () => page.goto(`${base}/r/${rollouts}/n/${talks}`), hasRows);
  // In the page: to find and scroll to what is clicked takes the driver longer than the page takes to answer.
  const talk = await page.evaluate(async (place) => {
    const start = performance.now();
    document.querySelectorAll(".body .line a")[place].click();
    while (document.querySelectorAll("article.turn").length < 2) await new Promise(requestAnimationFrame);
    return performance.now() - start;
  }, time % 5);
  found.page_talk.push(talk);
}
await report(found);

// Schedules: when they run next, what failed, and the buttons that pause them or ask for a run.

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { Problem, type Schedule, address, tell } from "./api";
import { State, Told } from "./common";
import { count, moment, visible } from "./format";
import { link } from "./route";

function time(text: string | null | undefined): string {
  return text ? moment(Date.parse(text) / 1000) : "";
}

function mood(schedule: Schedule): string {
  if (!schedule.served) return "no daemon";
  if (schedule.paused) return "paused";
  if (schedule.running.length > 0) return "running";
  return schedule.waiting > 0 ? `${count(schedule.waiting)} waiting` : "idle";
}

export function Schedules({ schedules, again }: { schedules: Schedule[]; again: () => void }): JSX.Element {
  const [failed, setFailed] = useState<Problem | null>(null);
  const act = (name: string, action: string): void => {
    tell<Schedule>(address(["schedules"]), { name, action }).then(
      () => {
        setFailed(null);
        again();
      },
      (error: unknown) => setFailed(error instanceof Problem ? error : new Problem(String(error), null, 0)),
    );
  };
  return (
    <section>
      <h2>Schedules</h2>
      {failed && <Told problem={failed} />}
      <div class="scroll" tabIndex={0}>
        <table class="list">
          <thead>
            <tr>
              <th scope="col">Schedule</th>
              <th scope="col">Now</th>
              <th scope="col">Next</th>
              <th scope="col">Last run</th>
              <th scope="col">Cron</th>
              <th scope="col">File</th>
              <th scope="col">Do</th>
            </tr>
          </thead>
          <tbody>
            {schedules.map((schedule) => {
              const last = schedule.last;
              const outcome = last?.outcome.replaceAll("_", " ") ?? "";
              return (
                <tr key={schedule.name}>
                  <th scope="row">
                    <a href={link(["p", schedule.name])}>{schedule.name}</a>
                  </th>
                  <td>{mood(schedule)}</td>
                  <td>{schedule.paused ? "" : time(schedule.next)}</td>
                  <td class="why">
                    {last && (
                      <>
                        {last.run ? (
                          <a href={link(["r", last.run])}>
                            <State state={outcome === "succeeded" ? "done" : outcome} />
                          </a>
                        ) : (
                          <State state={outcome} />
                        )}{" "}
                        {time(last.ended)} {last.message && <span class="quiet">{visible(last.message)}</span>}
                      </>
                    )}
                  </td>
                  <td>
                    <code>{schedule.cron}</code> <span class="quiet">{schedule.timezone}</span>
                  </td>
                  <td>{schedule.file}</td>
                  <td>
                    <button type="button" aria-label={`${schedule.paused ? "Resume" : "Pause"} ${schedule.name}`} onClick={() => act(schedule.name, schedule.paused ? "resume" : "pause")}>
                      {schedule.paused ? "Resume" : "Pause"}
                    </button>{" "}
                    <button type="button" aria-label={`Run ${schedule.name} now`} disabled={!schedule.served} onClick={() => act(schedule.name, "trigger")}>
                      Run now
                    </button>
                  </td>
                </tr>
              );
            })}
          </tbody>
        </table>
      </div>
    </section>
  );
}

// Reads streams as the official Go SDK did before version 3.43: each empty line ends an event, whose data must be JSON
// even if there is none. Arguments: URL, body, count.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
)

func main() {
	count, _ := strconv.Atoi(os.Args[3])
	for i := 0; i < count; i++ {
		answer, err := http.Post(os.Args[1], "application/json", strings.NewReader(os.Args[2]))
		if err != nil {
			fmt.Println("failed", err)
			os.Exit(1)
		}
		events, data, done := 0, "", false
		lines := bufio.NewScanner(answer.Body)
		for lines.Scan() {
			line := lines.Text()
			switch {
			case line == "" && data == "[DONE]":
				done = true
			case line == "":
				var chunk map[string]any
				if err := json.Unmarshal([]byte(data), &chunk); err != nil {
					fmt.Println("failed", err)
					os.Exit(1)
				}
				events++
			case strings.HasPrefix(line, "data: "):
				data = line[len("data: "):]
				continue
			default:
				continue
			}
			data = ""
		}
		answer.Body.Close()
		fmt.Println(answer.StatusCode, events, done)
	}
}

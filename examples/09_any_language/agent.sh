#!/bin/sh
# One agent in shell, with curl: says in a sentence what an item costs.
#
# agent.sh QUESTION ITEM PRICE
#
# OPENAI_BASE_URL and OPENAI_API_KEY say where the model is. While a run is on, that is the
# gateway, and the URL says whose attempt this is and who speaks.
set -eu
question=$1 item=$2 price=$3

post() { # post PATH BODY
    curl --silent --show-error --fail-with-body --max-time 60 \
        --header "Authorization: Bearer $OPENAI_API_KEY" \
        --header "Content-Type: application/json" \
        --data "$2" "$OPENAI_BASE_URL$1"
}

escaped() { # the text as a JSON string has it; a real program has jq for this
    printf '%s' "$1" | sed 's/[\\"]/\\&/g'
}

random() { # random BYTES, in hex digits
    od -An -N"$1" -tx1 /dev/urandom | tr -d ' \n'
}

began=$(date +%s)000000000
result="{\"item\": \"$item\", \"price\": \"$price\"}"
request="\"Question: $(escaped "$question")\\nResult: $(escaped "$result")\""
reply=$(post /chat/completions "{
    \"model\": \"gpt-4o-mini\",
    \"messages\": [
        {\"role\": \"system\",
         \"content\": \"You are the writer. One short sentence: item, exact price, unit.\"},
        {\"role\": \"user\", \"content\": $request}
    ]
}")
answer=$(printf '%s' "$reply" |
    sed 's/.*"content": *"\([^"\\]*\(\\.[^"\\]*\)*\)".*/\1/; s/\\\(["\\]\)/\1/g')

# What else happened, as a span in OTLP's JSON form.
post /traces "{\"resourceSpans\": [{\"scopeSpans\": [{\"spans\": [{
    \"traceId\": \"$(random 16)\", \"spanId\": \"$(random 8)\", \"name\": \"sell\",
    \"startTimeUnixNano\": \"$began\", \"endTimeUnixNano\": \"$(date +%s)000000000\",
    \"attributes\": [{\"key\": \"shop.item\", \"value\": {\"stringValue\": \"$(escaped "$item")\"}}]
}]}]}]}" >/dev/null

# How good it was; for the whole attempt unless an agent or a call is named.
value=0
case $answer in *"$item"*"$price"*) value=1 ;; esac
post /rewards "{\"value\": $value}" >/dev/null

printf '%s\n' "$answer"
